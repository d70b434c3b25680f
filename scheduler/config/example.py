"""An example file: every setting, what it means and its default, made from the models' own source."""

from __future__ import annotations

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from scheduler.config.model import kind_words, variable


def example_of(kind: type[msgspec.Struct], prefix: str) -> str:
    """A TOML file with every setting, what it means, and its default, commented out."""
    lines = [
        "# Settings of the scheduler. Where a # stands right before a key, the line shows the default:",
        "# take the # away to change it.",
        *(_about_variables(kind, prefix) if prefix else ()),
        "",
    ]
    return "\n".join([*lines, *_example_table(kind, "")])


def _about_variables(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """How to say the same in the environment: by the last key of the file, and by the first of its last table."""
    fields = msgspec.structs.fields(kind)
    plain = [field.name for field in fields if not isinstance(field.default, msgspec.Struct)]
    yield "#"
    yield "# A variable of the environment goes before this file:"
    yield f"#     {variable(prefix, (plain[-1],))} for {plain[-1]}"
    for field in fields[-1:]:
        if isinstance(field.default, msgspec.Struct):
            place = field.name, next(iter(field.default.__struct_fields__))
            yield f"#     {variable(prefix, place)} for {'.'.join(place)}: two underscores for the dot"


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
    """Each field with the comment on its lines, and its default."""
    source = textwrap.dedent(inspect.getsource(kind))
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said = {token.start[0]: token.string.strip(" #") for token in tokens if token.type == tokenize.COMMENT}
    comments: dict[str, str] = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            comments[node.target.id] = " ".join(said[row] for row in rows if row in said)
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        default = field.default if made is msgspec.NODEFAULT else made()
        yield field.name, comments.get(field.name, ""), default
