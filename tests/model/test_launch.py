"""The launch of a job: known fields have types, and fields that only other releases know are kept."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from scheduler.core.messages import SubmitJobs
from scheduler.core.on_jobs import _digest
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import JobSpec
from scheduler.model.launch import JobDecoder, Launch, restored
from tests.support.desk import Desk

KNOWN = {"command": ["a"], "env": {"A": "1"}, "ranks": "per_node"}


@pytest.mark.parametrize("protocol", [msgspec.json, msgspec.msgpack])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"argv": ["b", 1], "nested": {"launch": {"x": None}}},
        {"setup": ["a list"], "venv": None, "checkpoints": "per_epoch"},
    ],
    ids=["nothing", "fields of their own", "values of another kind"],
)
def test_unknown_fields_of_a_launch_are_kept(protocol: ModuleType, more: dict[str, Any]) -> None:
    """Unknown fields, and values of another kind, are kept beside the known ones, and written back unchanged."""
    written = {"name": "x", "launch": KNOWN | more}
    spec = JobDecoder(protocol, JobSpec).decode(protocol.encode(written))
    assert spec.launch == Launch(command=("a",), env={"A": "1"}, ranks="per_node", unknown=more)
    assert restored(msgspec.to_builtins(spec, builtin_types=())) == {
        "name": "x",
        "launch": KNOWN | more | {"command": ("a",)},
    }
    rewritten = protocol.encode(spec)
    assert JobDecoder(protocol, JobSpec).decode(rewritten) == spec


def test_unknown_fields_elsewhere_are_an_error() -> None:
    """Unknown fields, and values of another kind, are errors everywhere except in launches."""
    decoder = JobDecoder(msgspec.json, JobSpec)
    for payload in (b'{"name":1}', b'{"colour":"red"}', b'{"launch":{"x":1},"name":1}', b'{"launch":3}'):
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(payload)


def test_a_snapshot_of_an_older_release_is_read() -> None:
    """In an older snapshot a launch is a map with arbitrary entries."""
    desk = Desk()
    desk.tell(0.0, SubmitJobs(specs=(JobSpec(launch=Launch(command=("a",), env={"A": "1"})),)))
    plain = msgspec.msgpack.decode(desk.core.state.snapshot())
    plain["jobs"]["1"]["spec"]["launch"] = KNOWN | {"argv": ["b"]}
    launch = SchedulerState.restore(msgspec.msgpack.encode(plain)).jobs["1"].spec.launch
    assert launch == Launch(command=("a",), env={"A": "1"}, ranks="per_node", unknown={"argv": ["b"]})


def test_the_digest_of_a_submission_never_changes() -> None:
    """The state holds digests of requests, so a request that is sent again after an upgrade must match."""
    launch = Launch(
        command=("python", "train.py"),
        setup="make",
        upload="sha256:" + "0" * 64,
        env={"B": "1", "A": "2"},
        ranks="per_node",
        checkpoints="per_attempt",
        setup_limit_s=60.0,
    )
    specs = (JobSpec(name="a", launch=launch, labels={"y": "1", "x": "2"}), JobSpec(gpus=2))
    digest = _digest(SubmitJobs(specs=specs, user="ann", key="k"))
    assert digest == "95a491f96bcdeb2b0a98c68f2bb4844fe358f195ad372d230ff6cda66e2303ce"
