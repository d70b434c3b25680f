"""The audit log, the limits, and errors as statuses."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from protos.gavel.v1 import cluster_pb2 as cpb
from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.live.access import interceptor
from scheduler.live.access.audit import Audit
from scheduler.live.access.limits import Buckets, Slots
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import INTERNAL, CallFailed, failure, status_of
from scheduler.model.errors import InvalidSpec
from tests.support.live import Live, problem_of, spec, with_daemon

WHO = Caller("ann", Role.USER, "abc", "ipv4:192.0.2.1:5")


def lines(path: Path) -> list[dict[str, Any]]:
    """The entries of an audit log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@with_daemon()
async def test_every_change_is_in_the_audit_log_even_a_refused_one(live: Live) -> None:
    """An entry has user, call, address and result, and no secrets; calls that change nothing have no entry."""
    secret = spec(name="a", launch=pb.Launch(command=["x", "hunter2"], env={"PASSWORD": "hunter2"}))
    await live.jobs("ann").SubmitJobs(pb.SubmitJobsRequest(specs=[secret], idempotency_key="k"))
    await live.jobs("ann").ListJobs(pb.ListJobsRequest())
    cancel = pb.CommandJobRequest(job="9", action=pb.CommandJobRequest.ACTION_CANCEL)
    await problem_of(live.jobs("bob").CommandJob(cancel))
    await live.cluster("opa").SetPolicy(cpb.SetPolicyRequest(policy="fifo"))
    entries = lines(live.folder / "audit.log")
    assert [(entry["user"], entry["call"], entry["result"]) for entry in entries] == [
        ("ann", "Jobs/SubmitJobs", "ok"),
        ("bob", "Jobs/CommandJob", "not_found"),
        ("opa", "Cluster/SetPolicy", "ok"),
    ]
    assert entries[0]["what"] == {"jobs": 1, "specs": [{"name": "a", "user": "", "gpus": 1}], "key": "k"}
    assert entries[1]["what"] == {"job": "9", "action": "ACTION_CANCEL"}
    assert entries[0]["from"].startswith("ipv4:127.0.0.1")
    assert "hunter2" not in (live.folder / "audit.log").read_text()


@with_daemon(auth="tokens")
async def test_a_caller_that_is_not_let_in_is_in_the_audit_log(live: Live) -> None:
    """A call without a token, and one whose role is too low, are logged."""
    assert live.people.access is not None
    viewer = live.people.access.create("vic", Role.VIEWER, 60.0)
    await problem_of(live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec()])))
    await problem_of(live.jobs(token=viewer[1]).SubmitJobs(pb.SubmitJobsRequest(specs=[spec()])))
    entries = lines(live.folder / "audit.log")
    assert [("", "unauthenticated", ""), ("vic", "forbidden", viewer[0].id)] == [
        (entry["user"], entry["result"], entry["token"]) for entry in entries
    ]


@with_daemon()
async def test_a_call_that_gets_no_answer_ends(live: Live) -> None:
    """The server ends a call that has no answer, even if its caller sets no deadline."""
    before, interceptor.CALL_S = interceptor.CALL_S, 0.05
    try:
        live.world.send = lambda *_: None  # type: ignore[method-assign]
        problem = await problem_of(live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec()])))
    finally:
        interceptor.CALL_S = before
        del live.world.send  # type: ignore[method-assign]
    assert (problem.code.name, problem.reason) == ("UNAVAILABLE", "unavailable")


def test_the_audit_log_is_rotated_and_private(tmp_path: Path) -> None:
    """The log keeps a few files of limited size with the newest lines; a name with a line break stays on one line."""
    path = tmp_path / "audit.log"
    audit = Audit(path, PeopleConfig(audit_bytes_max=1000, audit_files=3), lambda: 0.0)
    for number in range(40):
        audit.note(WHO, "/gavel.v1.Jobs/CommandJob", pb.CommandJobRequest(job=f"{number}\n"), "ok")
    audit.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(
        path.stat().st_size < 1400 and path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir()
    )
    logged = [entry["what"]["job"] for name in reversed(names) for entry in lines(tmp_path / name)]
    assert [f"{number}\n" for number in range(40 - len(logged), 40)] == logged


def test_an_audit_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry goes to the daemon's log instead."""
    audit = Audit(tmp_path / "audit.log", PeopleConfig(), lambda: 0.0)
    audit._file = open("/dev/full", "a")  # noqa: SIM115 - a disk without space
    with caplog.at_level(logging.ERROR):
        audit.note(WHO, "/gavel.v1.Jobs/CommandJob", Message, "ok")
    assert "cannot be written" in caplog.text
    assert "'user': 'ann'" in caplog.text


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    """Each name has a bucket; a full one lends more than it holds, and is refilled later."""
    clock = [0.0]
    buckets = Buckets(2.0, 10.0, lambda: clock[0])
    assert buckets.wait_s("a", 10.0) == 0.0
    buckets.take("a", 10.0)
    assert (buckets.wait_s("a"), buckets.wait_s("b")) == (0.5, 0.0)
    clock[0] = 0.5
    assert buckets.wait_s("a") == 0.0
    assert buckets.wait_s("b", 100.0) == 0.0
    buckets.take("b", 100.0)
    assert buckets.wait_s("b") == 45.5


def test_slots_are_released() -> None:
    """A slot is free again even when the work that took it fails."""
    slots = Slots(1, "watchers")

    def work() -> None:
        with slots:
            with pytest.raises(CallFailed, match="1 watchers"), slots:
                pass
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        work()
    assert slots.used == 0


@pytest.mark.parametrize("field", [name for name in PeopleConfig.__struct_fields__ if name != "terminals"])
def test_limits_are_above_zero(field: str) -> None:
    """Every limit must be above zero, and the error names the wrong one."""
    for value in (0, -1, float("nan")):
        with pytest.raises(InvalidSpec) as caught:
            PeopleConfig(**{field: value}).checked()
        assert field == caught.value.field
    assert PeopleConfig() == PeopleConfig().checked()


def test_an_unforeseen_error_is_in_the_log_under_its_number(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets the number only; the log has the traceback."""
    try:
        raise KeyError("inside")
    except KeyError as error:
        with caplog.at_level(logging.ERROR):
            failed = failure(error)
    assert (failed.reason, "inside" in failed.text) == (INTERNAL, False)
    assert failed.text[-8:] in caplog.text
    assert "KeyError: 'inside'" in caplog.text


def test_a_status_fits_into_headers_however_long_its_text() -> None:
    """Texts and fields are cut, since the headers that carry a status have only a few kilobytes."""
    status = status_of(CallFailed("invalid", "é" * 100_000, "f" * 100_000))
    assert len(status.details) <= 2000
    assert sum(len(value) for _, value in status.trailing_metadata) < 12_000
