"""A journal of this release, kept as text, which later releases must read with the same meaning.

    python -m tests.journal.golden          # rewrite golden.jsonl; lines may be added, but never change

There is a line for each type of facts with every field filled, one for a launch with every field of the protocol, and
one for each of the golden stories, with its records and the state that they lead to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from msgspec.inspect import type_info

from protos.gavel.v1 import jobs_pb2
from scheduler.core.facts import AnyFact, Fact, JobSubmitted
from scheduler.core.state import SchedulerState
from scheduler.journal.codec import encode_facts
from scheduler.live.wire.jobs import spec_from_wire
from scheduler.model.launch import Launch
from tests.golden.play import Play

PATH = Path(__file__).with_suffix(".jsonl")
STORIES = Path(__file__).resolve().parents[1] / "golden"


def filled(kind: msgspec.inspect.Type, name: str = "") -> Any:
    """A value of this type, as plain data, in which no field has its default."""
    match kind:
        case msgspec.inspect.StructType():
            values = {field.encode_name: filled(field.type, field.name) for field in kind.fields}
            # Unknown fields of a launch are in the journal beside the known ones.
            if kind.cls is Launch:
                del values["unknown"]
                values["key"] = "a launch"
            if kind.array_like:
                return list(values.values())
            return ({"type": kind.tag} if kind.tag else {}) | values
        case msgspec.inspect.UnionType():
            return filled(next(it for it in kind.types if not isinstance(it, msgspec.inspect.NoneType)), name)
        case msgspec.inspect.DictType():
            return {"key": filled(kind.value_type, name)}
        case msgspec.inspect.TupleType():
            return [filled(part, name) for part in kind.item_types]
        case msgspec.inspect.NamedTupleType():
            return [filled(field.type, field.name) for field in kind.fields]
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType() | msgspec.inspect.SetType():
            return [filled(kind.item_type, name)]
        case msgspec.inspect.EnumType():
            return list(kind.cls)[-1].value
        case msgspec.inspect.LiteralType():
            return next(value for value in kind.values if value)
        case msgspec.inspect.BoolType():
            return name not in _TRUE_BY_DEFAULT
        case msgspec.inspect.IntType():
            return 7
        case msgspec.inspect.FloatType():
            return 2.5
    return f"a {name}"


_TRUE_BY_DEFAULT = ("preemptible", "packable", "reports_steps", "fill_mid_round", "learn_rates", "optimal")


def every_fact() -> Iterator[dict[str, Any]]:
    """Yield a fact of each type, with all its fields."""
    for kind in get_args(AnyFact):
        yield filled(type_info(kind))


def every_launch() -> Fact:
    """A job whose launch has every field of the protocol, except messages and what excludes others."""
    launch = jobs_pb2.Launch()
    for field in launch.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(launch, field.name)["NAME"] = "value"
        elif field.is_repeated:
            getattr(launch, field.name).append("word")
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(launch, field.name, _TEXTS.get(field.name, f"/{field.name}"))
        elif field.message_type is None:
            setattr(launch, field.name, 1)
    launch.env_from.clear()
    launch.env_from["SECRET"] = "secret"
    launch.ClearField("script")
    return JobSubmitted(job="1", spec=spec_from_wire(jobs_pb2.JobSpec(launch=launch)))


_TEXTS = {"upload": "sha256:" + 64 * "0", "workdir": "inside"}


def stories() -> Iterator[dict[str, Any]]:
    """Yield the records of each golden story, and the state that they lead to."""
    for path in sorted(STORIES.glob("*.txt")):
        play = Play()
        for line in commands(path.read_text(encoding="utf-8")):
            play.perform(line)
        records = [[now_s, json.loads(encode_facts(facts))] for now_s, facts in play.stage.journal.records]
        yield {"story": path.stem, "records": records, "state": plain(play.stage.state)}


def commands(transcript: str) -> list[str]:
    """The commands of a story."""
    return [line[2:] for line in transcript.splitlines() if line.startswith("> ")]


def plain(state: SchedulerState) -> Any:
    """A state as plain JSON data."""
    return json.loads(msgspec.json.encode(msgspec.msgpack.decode(state.snapshot())))


def main() -> None:
    """Write the file."""
    lines: list[dict[str, Any]] = [{"fact": fact["type"], "payload": fact} for fact in every_fact()]
    launched = json.loads(encode_facts([every_launch()]))[0]
    lines += [{"fact": "launch", "payload": launched}, *stories()]
    PATH.write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
