"""The notifications of a job: read from `ops`, `ops:failed,held` and `{on: [failed, held], to: ops}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gavel.client.jobs import values as v
from gavel.client.jobs.spec import Notify
from protos.files.errors import BadInput, literal, suggest
from protos.files.nodes import List, Node, Scalar, Table

EVENTS = ("completed", "failed", "cancelled", "held", "idle")
_EVENT_SCHEMA = {"enum": [*EVENTS]}
_ONE_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "on": {"anyOf": [_EVENT_SCHEMA, {"type": "array", "items": _EVENT_SCHEMA}]},
                "to": {"type": "string"},
            },
            "required": ["to"],
            "additionalProperties": False,
        },
    ]
}
SCHEMA = {"anyOf": [*_ONE_SCHEMA["anyOf"], {"type": "array", "items": _ONE_SCHEMA}]}


def notifications(node: Node) -> tuple[Notify, ...]:
    """Read the channels of a job file, one or several."""
    return v.each(_entry, node.value if isinstance(node, List) else [node])


def checked(value: Any) -> tuple[Notify, ...]:
    """Return the channels of a spec from Python, one or several, each a `Notify` or text."""
    several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    return v.each(_checked_entry, value if several else [value])


def _entry(node: Node) -> Notify:
    if not isinstance(node, Table):
        channel, _, events = v.name_of(node, "a channel, as in ops or ops:failed").partition(":")
        return _notify(channel, tuple(events.split(",")) if events else ())
    parts = v.entries(node, ("on", "to"), ("to",), "{on: [failed], to: ops}")
    on = v.read_part("on", v.names, parts["on"]) if "on" in parts else ()
    return _notify(v.read_part("to", v.name_of, parts["to"]), on)


def _checked_entry(value: Any) -> Notify:
    if isinstance(value, str):
        return _entry(Scalar(value, is_quoted=True))
    if isinstance(value, Mapping) and "to" in value and set(value) <= {"to", "on"}:
        value = Notify(**value)
    if isinstance(value, Notify):
        events: Any = value.on
        on = (events,) if isinstance(events, str) else events
        if isinstance(on, Sequence) and all(isinstance(part, str) for part in (value.to, *on)):
            return _notify(value.to, tuple(on))
    raise BadInput(f"must be the name of a channel, or Notify(name, ('failed',)), got {value!r:.60}")


def _notify(to: str, on: tuple[str, ...]) -> Notify:
    for event in on:
        if event not in EVENTS:
            raise BadInput(f"{literal(event)} is no event of a job; {suggest(event, EVENTS)}", place=("on",))
    if not to:
        raise BadInput("names no channel; write it as in ops:failed")
    return Notify(to, on)
