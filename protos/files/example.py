"""An example file of settings: every key with its meaning and default, from the models and their annotations."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from protos.files.convert import bare, expected, is_struct
from protos.files.settings import variable


def example_settings(kind: type[msgspec.Struct], title: str, prefix: str = "") -> str:
    """Return a TOML file with every setting commented out. `prefix`: how the environment variables begin."""
    lines = [
        f"# {title}. A line with # directly before a key shows its default:",
        "# remove the # to change it.",
        *(_about_variables(kind, prefix) if prefix else ()),
        "",
    ]
    return "\n".join([*lines, *_table(kind, "")])


def _about_variables(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """Yield comments with two environment variables as examples: one for a plain key, one for a key in a table."""
    names = {name: isinstance(default, msgspec.Struct) for name, _, default in settings_of(kind)}
    last = [name for name, is_table in names.items() if not is_table][-1]
    yield "#"
    yield "# Environment variables override this file:"
    yield f"#     {variable(prefix, (last,))} for {last}"
    for name, _, default in list(settings_of(kind))[-1:]:
        if isinstance(default, msgspec.Struct):
            place = name, default.__struct_fields__[0]
            yield f"#     {variable(prefix, place)} for {'.'.join(place)}: two underscores for the dot"


def _table(kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Yield the keys of a table, then the tables in it: in TOML, all keys after a header belong to its table."""
    hints = get_type_hints(kind)
    tables = []
    for name, meaning, default in settings_of(kind):
        if isinstance(default, msgspec.Struct):
            tables.append((name, meaning, type(default)))
            continue
        yield from textwrap.wrap(meaning, 100, initial_indent="# ", subsequent_indent="# ")
        items = get_args(bare(hints[name]))[:1]
        if items and is_struct(items[0]):
            yield from _entry(f"{path}{name}", items[0])
        elif default is None:
            yield f"# {name} is not set by default; {expected(hints[name])}"
        else:
            yield f"#{name} = {_toml(default)}"
        yield ""
    for name, meaning, table in tables:
        yield from textwrap.wrap(meaning, 100, initial_indent="# ", subsequent_indent="# ")
        yield f"[{path}{name}]"
        yield ""
        yield from _table(table, f"{path}{name}.")


def _entry(name: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    yield f"# Empty by default. An entry looks like this one. {' '.join((kind.__doc__ or '').split())}"
    yield f"# [[{name}]]"
    explained: set[type] = set()
    for field, meaning, default in settings_of(kind):
        value = '"…"' if default is msgspec.NODEFAULT else _toml(default)
        yield f"# {field} = {value}  # {meaning}"
        if isinstance(default, msgspec.Struct) and type(default) not in explained:
            explained.add(type(default))
            yield from (f"# # {field}.{name}: {about}" for name, about, _ in settings_of(type(default)))


def _toml(value: Any) -> str:
    return "{}" if value == {} or isinstance(value, msgspec.Struct) else json.dumps(value)


def settings_of(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, Any]]:
    """Yield each field with the text in its annotation, and its default."""
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        meaning = next(
            (part for part in getattr(hints[field.name], "__metadata__", ()) if isinstance(part, str)), ""
        )
        factory = field.default_factory
        yield field.name, meaning, field.default if factory is msgspec.NODEFAULT else factory()
