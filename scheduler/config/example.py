"""An example file: every setting, what it means and its default, made from the models' own source."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from scheduler.config.model import kind_words


def example_of(kind: type[msgspec.Struct]) -> str:
    """A TOML file with every setting, what it means, and its default, commented out."""
    lines = [
        "# Settings of the scheduler. Where a # stands right before a key, the line shows the default:",
        "# take the # away to change it.",
        "",
    ]
    return "\n".join([*lines, *_example_table(kind, "")])


def _example_table(kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    """The keys of a table, then the tables in it: in TOML, what follows a header belongs to it."""
    hints = get_type_hints(kind)
    inner = []
    for name, meaning, default in _documented(kind):
        if isinstance(default, msgspec.Struct):
            inner.append((name, meaning, type(default)))
            continue
        yield from textwrap.wrap(meaning, 100, initial_indent="# ", subsequent_indent="# ")
        hint = hints[name]
        if get_origin(hint) is tuple and not _is_plain(get_args(hint)[0]):
            yield from _example_list(f"{path}{name}", get_args(hint)[0])
        elif default is None:
            yield f"# {name} is not set unless you do; {kind_words(hint)}"
        else:
            yield f"#{name} = {_toml_value(default)}"
        yield ""
    for name, meaning, table in inner:
        yield from textwrap.wrap(meaning, 100, initial_indent="# ", subsequent_indent="# ")
        yield f"[{path}{name}]"
        yield ""
        yield from _example_table(table, f"{path}{name}.")


def _is_plain(kind: Any) -> bool:
    return not (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _example_list(name: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    yield f"# None unless there are entries like this one. {' '.join((kind.__doc__ or '').split())}"
    yield f"# [[{name}]]"
    for field, meaning, default in _documented(kind):
        value = '"…"' if default is msgspec.NODEFAULT else _toml_value(default)
        yield f"# {field} = {value}{f'  # {meaning}' if meaning else ''}"


def _toml_value(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value)


def _documented(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, Any]]:
    """Each field with the comment on its line, and its default."""
    source = textwrap.dedent(inspect.getsource(kind))
    rows, body = source.splitlines(), ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    comments: dict[str, str] = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            row = rows[(node.end_lineno or 1) - 1].encode()
            comments[node.target.id] = row[node.end_col_offset or 0 :].decode().strip(" #")
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        default = field.default if made is msgspec.NODEFAULT else made()
        yield field.name, comments.get(field.name, ""), default
