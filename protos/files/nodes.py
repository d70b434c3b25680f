"""The nodes of a YAML file: each has its line, and a scalar keeps its text as written.

Values follow the core rules of YAML 1.2: `no` is a word, `012` is twelve, `1e6` is a number, `1:30` is text. Nodes are
exempt from garbage collection, because a large file has millions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from protos.files.errors import Place, literal

# A longer number is text, because Python refuses to read thousands of digits.
NUMBER_CHARS_MAX = 300
_WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Scalar(msgspec.Struct, gc=False, eq=False):
    """A word or number as written. `line` is None if it does not come from a file."""

    value: str
    line: int | None = None
    is_quoted: bool = False


class List(msgspec.Struct, gc=False, eq=False):
    """A list."""

    value: list[Node]
    line: int | None = None


class Table(msgspec.Struct, gc=False, eq=False):
    """A mapping: by the text of each key, the key's node and the value's node."""

    value: dict[str, tuple[Scalar, Node]]
    line: int | None = None


Node = Scalar | List | Table


def scalar(node: Node) -> Any:
    """Return the value of a scalar: text, number, true, false or None; return a list or mapping unchanged."""
    if not isinstance(node, Scalar) or node.is_quoted:
        return node.value if isinstance(node, Scalar) else node
    text = node.value
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    if len(text) > NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text):
        return text
    return int(text) if _WHOLE.fullmatch(text) else float(text)


def plain(node: Node) -> Any:
    """Return a node as plain data."""
    if isinstance(node, List):
        return [plain(item) for item in node.value]
    if isinstance(node, Table):
        return {name: plain(item) for name, (_, item) in node.value.items()}
    return scalar(node)


def line_of(node: Node, place: Place) -> int | None:
    """Return the line of the value at a place within a node or, if there is none, of the innermost value around it."""
    line = None
    for part in place:
        if isinstance(node, Table) and part in node.value:
            key, node = node.value[str(part)]
            line = key.line
        elif isinstance(node, List) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.line
        else:
            break
    return line


def quote(node: Node) -> str:
    """Return a node for a message, with numbers as written."""
    value = scalar(node) if isinstance(node, Scalar) else node.value
    return str(node.value)[:60] if type(value) in (int, float) else literal(value)
