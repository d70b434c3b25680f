"""Fields of jobs exist in every representation: a field added to the protocol, but not elsewhere, fails here."""

from dataclasses import fields

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor

from gavel.cli.jobs import update
from gavel.client import JobSpec as ClientSpec
from gavel.client import Plan as ClientPlan
from gavel.client.jobs import changes
from gavel.client.jobs.spec import FIELDS
from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1.plain import UnknownWord, message_of, plain
from scheduler.live.wire import jobs as wire
from scheduler.model.changes import JobChanges
from scheduler.model.jobs import Dependency, JobSpec
from scheduler.model.launch import Launch
from scheduler.model.plans import Plan
from worker_agent.core.messages import Launch as AgentLaunch

GIVEN = {
    "gpus": 2,
    "steps": 0.0,
    "packable": False,
    "name": "a",
    "array": (0, 2),
    "labels": {"A": "1"},
    "after": ({"job": "1", "when": "ended"}, {"job": "2"}),
    "launch": {
        "command": ("a", "b"),
        "env": {"A": "1"},
        "ranks": "per_node",
        "setup_limit_s": 0.0,
        "terminal": {"rows": 5},
    },
}


def names(message: Descriptor) -> set[str]:
    """The fields of a message."""
    return {field.name for field in message.fields}


@pytest.mark.parametrize(
    ("struct", "message"),
    [
        (JobSpec, pb.JobSpec.DESCRIPTOR),
        (Dependency, pb.Dependency.DESCRIPTOR),
        (Launch, pb.Launch.DESCRIPTOR),
        (AgentLaunch, pb.Launch.DESCRIPTOR),
        (Plan, pb.Plan.DESCRIPTOR),
    ],
)
def test_scheduler_and_agent_have_every_field(struct: type[msgspec.Struct], message: Descriptor) -> None:
    """Each has the protocol's fields by name, and `unknown` for fields in records of other releases."""
    assert {*struct.__struct_fields__} - {"unknown"} == names(message)


def test_the_client_has_every_field() -> None:
    """The client's spec also has the launch's fields, and `package` and `source`, which are not sent in that form."""
    wire = names(pb.JobSpec.DESCRIPTOR) - {"launch"} | names(pb.Launch.DESCRIPTOR)
    assert {field.name for field in fields(ClientSpec)} == wire | {"package", "source"}
    assert {field.name for field in fields(ClientPlan)} == names(pb.Plan.DESCRIPTOR)


def test_every_change_can_be_made_from_everywhere() -> None:
    """The protocol, the scheduler, the client and the command line name the same fields."""
    changeable = names(pb.JobChanges.DESCRIPTOR) - {"remove"}
    assert changeable == set(JobChanges.__struct_fields__) == set(changes.CHANGEABLE)
    assert wire.REMOVABLE == changes.REMOVABLE
    in_files = {field.name: field.target for field in FIELDS}
    unnamed = {"gpus_min", "gpus_max", "plans_from"}
    assert {in_files[name] for name in update.CHANGEABLE} | unnamed == changeable
    assert set(update.LIMITS.values()) == set(changes.REMOVABLE)


def test_a_job_file_has_every_field() -> None:
    """Every field of a spec can be set in a job file, except a terminal; a range of GPUs is one field there."""
    of_spec = {field.name for field in fields(ClientSpec)}
    assert of_spec - {field.target for field in FIELDS} == {
        *("gpus_min", "gpus_max", "terminal", "package", "plans_from", "source")
    }


def test_messages_are_plain_values_and_back() -> None:
    """A message that is made from plain values is turned back into exactly these values, zero and false included."""
    wire = message_of(pb.JobSpec, GIVEN)
    assert (wire.launch.ranks, wire.after[0].when) == (pb.Launch.RANKS_PER_NODE, pb.Dependency.WHEN_ENDED)
    assert plain(wire) == GIVEN
    assert plain(pb.JobSpec()) == {}
    assert plain(message_of(pb.JobSpec, {"launch": {"ranks": ""}})) == {"launch": {}}


def test_an_unknown_enum_number_is_reported_with_its_place() -> None:
    """An unknown number of an enum raises UnknownWord with its field, or becomes the caller's default."""
    wire = message_of(pb.JobSpec, GIVEN)
    wire.launch.ranks = 7  # type: ignore[assignment]
    with pytest.raises(UnknownWord) as unknown:
        plain(wire)
    assert (unknown.value.field, unknown.value.number) == ("launch.ranks", 7)
    assert plain(wire, unknown="")["launch"]["ranks"] == ""
    wire.launch.ranks = 0  # type: ignore[assignment]
    wire.after[1].when = 9  # type: ignore[assignment]
    with pytest.raises(UnknownWord) as unknown:
        plain(wire)
    assert (unknown.value.field, unknown.value.number) == ("after[1].when", 9)
