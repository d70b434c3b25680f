"""Read a JSON or YAML file as plain data; BadInput names the place of a mistake.

YAML is read by the rules of version 1.2, with aliases and the key `<<`. In both formats, repeated keys, numbers that
JSON does not have, and halves of surrogate pairs are refused.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gavel.cli.faults import reason
from protos.files.errors import BadInput, Place, literal
from protos.files.nodes import Node, line_of, plain
from traces.documents import line_of_bad_json

MIB = 2**20
# Reading YAML takes about ten times as long as JSON.
LIMITS = {"JSON": 256 * MIB, "YAML": 64 * MIB}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Document:
    """The data in a file, and the lines of its values in YAML."""

    data: Any
    root: Node | None = None

    def line_of(self, place: Place) -> int | None:
        """Return the line of a value; None if it is unknown, as in JSON."""
        return line_of(self.root, place) if self.root is not None else None


def read_document(name: str) -> Document:
    """Return the contents of a file; `-` is standard input.

    The ending of the name decides the format; without a known ending, the first character does.
    """
    content = _read(name)
    suffix = Path(name).suffix.lower()
    if suffix == ".json" or (suffix not in (".yaml", ".yml") and content.lstrip()[:1] in (b"{", b"[")):
        return Document(parse_json(_text(content, "JSON")))
    return parse_yaml(_text(content, "YAML"))


def _read(name: str) -> bytes:
    limit = max(LIMITS.values())
    try:
        if name == "-":
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise BadInput(reason(error)) from None
    except ValueError as error:
        # No file can have this name.
        raise BadInput(str(error)) from None
    return content.removeprefix(BYTE_ORDER_MARK)


def _text(content: bytes, form: str) -> str:
    if len(content) > LIMITS[form]:
        advice = "" if form == "JSON" else f"as JSON up to {LIMITS['JSON'] // MIB} MiB are read"
        raise BadInput(f"larger than {LIMITS[form] // MIB} MiB, the limit for {form}", advice)
    if not content.strip():
        raise BadInput("is empty")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"not UTF-8 text (byte 0x{content[error.start]:02x})", line=line) from None


def parse_yaml(text: str) -> Document:
    """Return the data in a YAML text."""
    from protos.files.yaml import read_yaml

    nodes = read_yaml(text, aliases=True)
    if len(nodes) > 1:
        raise BadInput("a second document begins", line=nodes[1].line)
    return Document(plain(nodes[0]), nodes[0]) if nodes else Document(None)


def parse_json(text: str) -> Any:
    """Return the data in a JSON text."""
    try:
        data = json.loads(text, object_pairs_hook=_mapping, parse_constant=_refuse_constant)
        if _HALF_CHARACTER.search(text):
            # Half of a surrogate pair would break output later; `loads` has turned whole pairs into characters.
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]} (column {error.colno})"
        raise BadInput(problem, line=error.lineno) from None
    except RecursionError:
        raise BadInput("nested too deeply") from None
    except UnicodeEncodeError:
        raise BadInput("holds half of a surrogate pair, which is not Unicode text") from None
    except BadInput as error:
        error.line = line_of_bad_json(text)
        raise
    except ValueError:
        # Python refuses integers of more than 4300 digits.
        raise BadInput("a number has thousands of digits") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise BadInput(f"key {literal(counts.most_common(1)[0][0])} appears twice")
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise BadInput(f"{name} is not a number in JSON")
