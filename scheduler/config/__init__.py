"""Settings from a file, TOML or YAML; whatever is wrong with it is said in one line that names the place.

The models (msgspec structs) alone say which keys there are: nothing here has to be changed when a setting is added, and
the example file is made from their source. What the command line and the environment say goes over the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from scheduler.config.example import example_of
from scheduler.config.faults import ConfigError, Fault, Lines, Place, line_of, words
from scheduler.config.files import read
from scheduler.config.model import check, meant
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings

__all__ = ["ConfigError", "Said", "environment", "example_config", "load_config", "load_settings"]
M = TypeVar("M", bound=msgspec.Struct)


class Said(NamedTuple):
    """A setting that does not come from the file, as text, and who said it: "--listen", "GAVEL_SERVE_LISTEN"."""

    key: str  # with dots
    text: str
    by: str


def load_settings(path: str | Path) -> Settings:
    """The scheduler's settings in a file; what it leaves out has its default. ConfigError in one line otherwise."""
    return load_config(Settings, path)


def load_config(kind: type[M], path: str | Path | None, over: tuple[Said, ...] = ()) -> M:
    """What a file says, and `over` it what else was said, later entries winning. ConfigError otherwise."""
    lines = Lines()
    told_by: dict[Place, str] = {}
    name = "" if path is None else Path(path).name
    try:
        data = {} if path is None else read(Path(path), lines)
        for said in over:
            place = tuple(said.key.split("."))
            told_by[place] = said.by
            _put(data, place, _value(said.text))
        check(kind, data, ())
        made = _completed(msgspec.convert(data, kind), data)
        _check_values(made, ())
        return made
    except Fault as fault:
        at: Place = fault.place
        what, advice = fault.what, fault.advice
        line = fault.line or line_of(lines, at)
    except InvalidSpec as error:
        at, advice = tuple(error.field.split(".")), error.advice
        what, line = f"{error.field} {error.problem}", line_of(lines, at)
    by = next((told_by[at[:n]] for n in range(len(at), 0, -1) if at[:n] in told_by), "")
    if not by and line is None:  # a table that nobody wrote, but for a key in it
        by = next((whose for key, whose in told_by.items() if key[: len(at)] == at), "")
    if len(at) == 1 and by.endswith(str(at[0]).upper()) and (right := meant(kind, by, str(at[0]))):
        advice = f"did you mean {right}?"
    where = by or (f"{name}, line {line}" if line else name)
    raise ConfigError(
        f"{what}{' in ' if where else ''}{where}{'; ' if advice else ''}{advice}", words(at), line
    )


def environment(prefix: str, variables: Mapping[str, str]) -> tuple[Said, ...]:
    """`GAVEL_SERVE_SCHEDULER__ROUND_S=60` says scheduler.round_s."""
    return tuple(
        Said(name.removeprefix(prefix).lower().replace("__", "."), text, name)
        for name, text in sorted(variables.items())
        if name.startswith(prefix)
    )


def example_config(kind: type[msgspec.Struct] = Settings, prefix: str = "") -> str:
    """A TOML file with every setting, what it means, and its default, commented out. `prefix`: of variables."""
    return example_of(kind, prefix)


def _put(data: dict[str, Any], place: Place, value: Any) -> None:
    for depth, key in enumerate(place[:-1], 1):
        inner = data.setdefault(key, {})  # type: ignore[arg-type]
        if not isinstance(inner, dict):
            raise Fault(place, f"{words(place[:depth])} is no table, so it has no {words(place)}")
        data = inner
    data[place[-1]] = value  # type: ignore[index]


def _value(text: str) -> Any:
    """As TOML has it, where it is TOML, and else the words themselves: `--listen 0.0.0.0:7070` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _completed(value: M, given: Mapping[str, Any]) -> M:
    """This model with what follows from other settings, in it and in those inside it, where it was not given."""
    for field in value.__struct_fields__:
        if isinstance(inner := getattr(value, field), msgspec.Struct):
            value = msgspec.structs.replace(value, **{field: _completed(inner, given.get(field, {}))})
    return value.completed(given) if hasattr(value, "completed") else value


def _check_values(value: msgspec.Struct, place: Place) -> None:
    """What the models themselves find wrong, the inner ones first, with the whole path to it."""
    for field in value.__struct_fields__:
        inner = getattr(value, field)
        if isinstance(inner, msgspec.Struct):
            _check_values(inner, (*place, field))
    if hasattr(value, "checked"):
        try:
            value.checked()
        except InvalidSpec as error:
            raise InvalidSpec(words((*place, error.field)), error.problem, error.advice) from None
