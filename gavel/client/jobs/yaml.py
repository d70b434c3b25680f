"""A YAML text as nodes that know their line, read by the 1.2 core rules: `no` is a word, `1e6` a number, `1:30` text.

What makes a small file large or strange is refused: aliases, tags, deep nesting. So is a key that stands twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

DEPTH_MAX = 20
_WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_ENDLESS = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Wrong(Exception):
    """What is wrong with a node; `at` leads from the field to it."""

    def __init__(self, node: yaml.Node | yaml.Event | None, problem: str, at: str = "") -> None:
        super().__init__(problem)
        self.line = line_of(node)
        self.problem = problem
        self.at = at
        self.more: Sequence[Wrong] = ()  # Other faults that were found with it.


def raise_first(faults: Sequence[Wrong]) -> None:
    """Raise the first of these, if there is one, with the others."""
    if faults:
        faults[0].more = faults[1:]
        raise faults[0]


def line_of(node: yaml.Node | yaml.Event | None) -> int | None:
    """From 1 on; None where it does not come from a file."""
    return node.start_mark.line + 1 if node is not None and node.start_mark is not None else None


def documents(text: str) -> list[yaml.Node]:
    """Each document that is not empty. Wrong where it is not YAML as we take it."""
    try:
        _look_over(text)
        return [node for node in yaml.compose_all(text, LOADER) if node is not None]
    except UnicodeEncodeError:  # no file has it, a program may
        raise Wrong(None, "is not Unicode text (half of a surrogate pair)") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        wrong = Wrong(None, f"not valid YAML: {_in_words(error, text)}")
        wrong.line = mark.line + 1 if mark else None
        raise wrong from None
    except yaml.reader.ReaderError as error:
        wrong = Wrong(None, f"not valid YAML: {error.reason}")
        wrong.line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise wrong from None
    except yaml.YAMLError as error:
        raise Wrong(None, f"not valid YAML: {' '.join(str(error).split())}") from None


def _in_words(error: yaml.MarkedYAMLError, text: str) -> str:
    """What is wrong with the text, in the words of people who write such files; else in the parser's."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or ""
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "the line is indented with a tab: use spaces"
    if "mapping values are not allowed" in problem:
        if len(re.findall(r":\s", f"{line} ")) > 1:
            return "a second colon: put a value with a colon and a space in it in quotes"
        return "the line is indented deeper than the one it belongs beside"
    if "expected key" in problem or "<block end>" in problem or "'-' indicator" in problem:
        return "the line begins in another column than those it belongs beside"
    if "',' or ']'" in problem or "',' or '}'" in problem:
        return f"a bracket that is opened {_above(error, mark)}is not closed: lists need ',' between and ']' at the end"
    if "quoted scalar" in (error.context or ""):
        return f"a quote that is opened {_above(error, mark)}is not closed"
    return ", ".join(part for part in (error.context, problem) if part)


def _above(error: yaml.MarkedYAMLError, mark: yaml.Mark | None) -> str:
    opened = error.context_mark
    return "" if opened is None or (mark and mark.line == opened.line) else f"in line {opened.line + 1} "


def _look_over(text: str) -> None:
    """The composer calls itself for each level, and knows neither what was tagged nor where an alias stood."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise Wrong(event, "an alias (*) stands here: write it out, or use `defaults:` beside `jobs:`")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", "tag:yaml.org,2002:str"):
            raise Wrong(event, f"the tag {tag} is not supported: leave it out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise Wrong(event, "nested too deeply for a job")


def scalar(node: yaml.Node) -> Any:
    """Text, number, true, false or None; for a list or mapping the node itself."""
    if not isinstance(node, yaml.ScalarNode):
        return node
    text = str(node.value)
    if node.style not in (None, ""):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _ENDLESS.fullmatch(text):
        return float(text.replace(".", "", 1))
    if _NUMBER.fullmatch(text):
        if len(text) > 300:
            raise Wrong(node, "is a number of hundreds of digits")
        return int(text) if _WHOLE.fullmatch(text) else float(text)
    return text


def shown(node: yaml.Node) -> str:
    """What stands there, for a message."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    value = scalar(node)
    if not isinstance(value, str):
        return "nothing" if value is None else str(node.value)[:60]
    text = value if len(value) <= 60 else value[:59] + "…"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text) + '"'


def pairs(node: yaml.Node, what: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
    """Each key with its node and its value's, none twice."""
    if not isinstance(node, yaml.MappingNode):
        raise Wrong(node, f"must be {what}, got {shown(node)}")
    found: dict[str, tuple[str, yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise Wrong(key, "a list or mapping cannot be a key")
        name = str(key.value)
        if name in found:
            first = line_of(found[name][1])
            raise Wrong(key, f"stands twice (first in line {first})" if first else "stands twice", name)
        found[name] = (name, key, value)
    return list(found.values())
