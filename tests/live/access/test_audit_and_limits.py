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
from scheduler.live.access.limits import Buckets, PeopleConfig, Places
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import INTERNAL, CallFailed, failure, status_of
from scheduler.model.errors import InvalidSpec
from tests.support.live import Live, problem_of, spec, with_daemon

WHO = Caller("ann", Role.USER, "abc", "ipv4:192.0.2.1:5")


def lines(path: Path) -> list[dict[str, Any]]:
    """The audit log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@with_daemon()
async def test_every_change_is_in_the_audit_log_also_those_refused(live: Live) -> None:
    """Who, what, from where, and how it ended; looking is not written down; nothing secret is."""
    secret = spec(name="a", launch=pb.Launch(command=["x", "hunter2"], env={"PASSWORD": "hunter2"}))
    await live.jobs("ann").SubmitJobs(pb.SubmitJobsRequest(specs=[secret], idempotency_key="k"))
    await live.jobs("ann").ListJobs(pb.ListJobsRequest())
    cancel = pb.CommandJobRequest(job="9", action=pb.CommandJobRequest.ACTION_CANCEL)
    await problem_of(live.jobs("bob").CommandJob(cancel))
    await live.cluster("opa").SetPolicy(cpb.SetPolicyRequest(policy="fifo"))
    told = lines(live.folder / "audit.log")
    assert [(one["user"], one["call"], one["result"]) for one in told] == [
        ("ann", "Jobs/SubmitJobs", "ok"),
        ("bob", "Jobs/CommandJob", "not_found"),
        ("opa", "Cluster/SetPolicy", "ok"),
    ]
    assert told[0]["what"] == {"jobs": 1, "specs": [{"name": "a", "user": "", "gpus": 1}], "key": "k"}
    assert told[1]["what"] == {"job": "9", "action": "ACTION_CANCEL"}
    assert told[0]["from"].startswith("ipv4:127.0.0.1")
    assert "hunter2" not in (live.folder / "audit.log").read_text()


@with_daemon(auth="tokens")
async def test_who_is_not_let_in_is_in_the_audit_log(live: Live) -> None:
    """Without a token, and with a role that is too low."""
    assert live.people.access is not None
    viewer = live.people.access.create("vic", Role.VIEWER, 60.0)
    await problem_of(live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec()])))
    await problem_of(live.jobs(token=viewer[1]).SubmitJobs(pb.SubmitJobsRequest(specs=[spec()])))
    told = lines(live.folder / "audit.log")
    assert [("", "unauthenticated", ""), ("vic", "forbidden", viewer[0].id)] == [
        (one["user"], one["result"], one["token"]) for one in told
    ]


@with_daemon()
async def test_a_call_that_gets_no_answer_ends(live: Live) -> None:
    """Even if its caller would wait for ever."""
    before, interceptor.CALL_S = interceptor.CALL_S, 0.05
    try:
        live.world.tell = lambda *_: None  # type: ignore[method-assign]
        problem = await problem_of(live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec()])))
    finally:
        interceptor.CALL_S = before
        del live.world.tell  # type: ignore[method-assign]
    assert (problem.code.name, problem.reason) == ("UNAVAILABLE", "unavailable")


def test_the_audit_log_is_rotated_and_private(tmp_path: Path) -> None:
    """So many files of such a size; the newest lines are in the first; a name with a line break stays one line."""
    path = tmp_path / "audit.log"
    audit = Audit(path, PeopleConfig(audit_bytes_max=1000, audit_files=3), lambda: 0.0)
    for number in range(40):
        audit.note(WHO, "/gavel.v1.Jobs/CommandJob", pb.CommandJobRequest(job=f"{number}\n"), "ok")
    audit.close()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(
        one.stat().st_size < 1400 and one.stat().st_mode & 0o777 == 0o600 for one in tmp_path.iterdir()
    )
    told = [one["what"]["job"] for name in reversed(names) for one in lines(tmp_path / name)]
    assert [f"{number}\n" for number in range(40 - len(told), 40)] == told


def test_an_audit_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line goes to the daemon's log instead."""
    audit = Audit(tmp_path / "audit.log", PeopleConfig(), lambda: 0.0)
    audit._file = open("/dev/full", "a")  # noqa: SIM115 - a disk without space
    with caplog.at_level(logging.ERROR):
        audit.note(WHO, "/gavel.v1.Jobs/CommandJob", Message, "ok")
    assert "cannot be written" in caplog.text
    assert "'user': 'ann'" in caplog.text


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    """Per name; what is more than a full bucket may be taken from a full one, and is paid back."""
    now = [0.0]
    buckets = Buckets(2.0, 10.0, lambda: now[0])
    assert buckets.wait_s("a", 10.0) == 0.0
    buckets.take("a", 10.0)
    assert (buckets.wait_s("a"), buckets.wait_s("b")) == (0.5, 0.0)
    now[0] = 0.5
    assert buckets.wait_s("a") == 0.0
    assert buckets.wait_s("b", 100.0) == 0.0
    buckets.take("b", 100.0)
    assert buckets.wait_s("b") == 45.5


def test_places_are_given_back() -> None:
    """Also when what took one fails."""
    places = Places(1, "watchers")

    def work() -> None:
        with places:
            with pytest.raises(CallFailed, match="1 watchers"), places:
                pass
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        work()
    assert places.taken == 0


@pytest.mark.parametrize("field", PeopleConfig.__struct_fields__)
def test_limits_are_above_zero(field: str) -> None:
    """Each of them; the wrong one is named."""
    for value in (0, -1, float("nan")):
        with pytest.raises(InvalidSpec) as caught:
            PeopleConfig(**{field: value}).checked()
        assert field == caught.value.field
    assert PeopleConfig() == PeopleConfig().checked()


def test_what_nobody_foresaw_is_in_the_log_under_its_number(caplog: pytest.LogCaptureFixture) -> None:
    """The caller learns the number; the log has the traceback."""
    try:
        raise KeyError("inside")
    except KeyError as error:
        with caplog.at_level(logging.ERROR):
            failed = failure(error)
    assert (failed.reason, "inside" in failed.text) == (INTERNAL, False)
    assert failed.text[-8:] in caplog.text
    assert "KeyError: 'inside'" in caplog.text


def test_a_status_fits_into_headers_whatever_was_said() -> None:
    """Texts and fields are cut: a status travels in a few kilobytes."""
    status = status_of(CallFailed("invalid", "é" * 100_000, "f" * 100_000))
    assert len(status.details) <= 2000
    assert sum(len(value) for _, value in status.trailing_metadata) < 12_000
