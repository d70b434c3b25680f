"""Options made from the fields of `Run`, which define their meanings and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import click
import msgspec

from gavel.cli.faults import Fault
from gavel.cli.io.options import STDOUT, Number, not_empty, options
from gavel.cli.policies.list import complete_policy
from gavel.cli.policies.plugins import POLICY_FILES
from gavel.cli.simulation.values import ByType, JobRange, Listed, joined_tables
from scheduler.sim.run import HINTS, KNOBS, Knob, Run

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
FIELDS = {field.name: field for field in msgspec.structs.fields(Run)}


def option_of(field: str) -> str:
    """Return the option for a field; for the trace, the argument `TRACE`."""
    option = KNOBS[field].option if field in KNOBS else ""
    return option or "--" + field.removesuffix("_s").replace("_", "-")


def run_options(*axes: str) -> Decorator:
    """Make options for every field of `Run` except the trace; those of `axes` take several values."""
    fields = [field for field in KNOBS if option_of(field).startswith("--")]
    return options(*(run_option(field, several=field in axes) for field in fields))


def run_option(field: str, help: str = "", *, several: bool = False) -> Decorator:
    """Return the option for a field. `help` replaces the help of the field.

    `several`: the option takes several values, separated by commas or given several times, as in a sweep.
    """
    knob, kind, default = KNOBS[field], _kind(field), FIELDS[field].default
    if kind is bool:
        return click.option(option_of(field), field, is_flag=True, help=help or knob.help)
    if field == "policy_files":
        return POLICY_FILES
    value, metavar, required = _type(knob, kind), knob.metavar, FIELDS[field].required
    help = help or knob.help + _default(knob, default)
    more: dict[str, Any] = {"default": default, "callback": not_empty} if kind is str else {}
    if get_origin(kind) is dict:
        more = {"multiple": True, "callback": joined_tables}
    if several:
        # A table by worker type contains commas itself.
        listed = get_origin(kind) is not dict
        advice = "Separate several by commas." if listed else "May be repeated."
        value, metavar = (Listed(value), f"{metavar},…") if listed else (value, metavar)
        # Without a default, the option is required: an empty text is no policy to compare.
        required = required or default == ""
        help = f"{knob.help} {advice}{'' if kind is str else _default(knob, default)}"
        more = {"multiple": True}
    if field == "policy":
        more["shell_complete"] = complete_policy
    return click.option(
        option_of(field), field, type=value, metavar=metavar, required=required, help=help, **more
    )


def values_of(field: str, values: Sequence[Any]) -> list[Any]:
    """Return the values given for an axis, each once; if none are given, the default of the field."""
    listed = [value for entry in values for value in (entry if isinstance(entry, list) else [entry])]
    return [value for i, value in enumerate(listed) if value not in listed[:i]] or [FIELDS[field].default]


def run_of_options(values: Mapping[str, Any]) -> Run:
    """Make a run from the values of its options, with defaults for the others."""
    if values.get("trace") == STDOUT:
        raise Fault("TRACE: cannot be standard input; write it to a file first")
    return Run(**{name: value for name, value in values.items() if value is not None})


def _kind(field: str) -> Any:
    """Return the type of a field's value, apart from None."""
    hint = get_args(HINTS[field])[0]
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if isinstance(hint, UnionType) else hint


def _type(knob: Knob, kind: Any) -> click.ParamType:
    """Return the type of an option for a field of this kind."""
    if kind is str:
        return click.Path() if knob.is_file else click.STRING
    if get_origin(kind) is tuple:
        return JobRange()
    assert knob.bound is not None, f"{knob.help}: a number needs bounds"
    if get_origin(kind) is dict:
        return ByType(Number(knob.bound, whole=get_args(kind)[1] is int))
    return Number(knob.bound, whole=kind is int)


def _default(knob: Knob, default: Any) -> str:
    """Return the default as the help shows it; empty if the field has no default value to show."""
    text = knob.default
    if knob.usual is not None:
        text = f"{knob.usual:g}, or {knob.published:g} with --comparison"
    elif type(default) in (int, float):
        text = f"{default:g}"
    return f"  [default: {text}]" if text else ""
