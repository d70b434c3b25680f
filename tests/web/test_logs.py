"""The output of a job in the browser: as it is printed, once, and as text whatever it is."""

from __future__ import annotations

from typing import Any

import pytest

from gavel.client import Client, JobSpec
from gavel.web import streams
from protos.gavel.v1 import jobs_pb2 as j
from scheduler.live.access import interceptor
from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.web.conftest import Site


@pytest.fixture(scope="module")
def job(site: Site) -> str:
    """A job of the user that runs."""
    with Client(site.live.address, token=site.tokens[Role.USER]) as client:
        (job,) = client.submit(JobSpec(command=("x",), gpus=1))
    site.live.do(site.live.daemon.run_job(job))
    return job


@pytest.fixture(autouse=True)
def nothing_printed(site: Site) -> None:
    """Each test begins with an empty log."""
    site.live.daemon.nodes.chunks = []


def prints(site: Site, *pieces: bytes, rank: int = 0) -> None:
    """Let the job print these pieces, one chunk each."""
    chunks = site.live.daemon.nodes.chunks
    offset = sum(len(chunk.data) for chunk in chunks if chunk.rank == rank)
    for piece in pieces:
        chunks.append(j.LogChunk(attempt=1, rank=rank, node="n1", offset=offset, data=piece))
        offset += len(piece)


def read(site: Site, path: str, **headers: str) -> list[Any]:
    """Return all events of a log."""
    with site.browser(Role.USER).events(path, **headers) as events:
        return list(events)


def test_a_log_is_read_as_text(site: Site, job: str) -> None:
    """Markup, ANSI codes, NUL, and bytes that are no UTF-8 arrive as text; a character that is cut in two is whole."""
    euro = "€".encode()
    prints(site, b"<script>alert(1)</script>\x1b[31m\x00", euro[:1], euro[1:], b"\xff\xfe!\n")
    *parts, end = read(site, f"/v1/jobs/{job}/logs")
    assert (
        "".join(event.data["text"] for event in parts)
        == "<script>alert(1)</script>\x1b[31m\x00€\ufffd\ufffd!\n"
    )
    assert [event.kind for event in (*parts, end)] == ["log"] * 4 + ["end"]
    assert tuple(parts[0].data[name] for name in ("attempt", "rank", "node", "offset")) == (1, 0, "n1", 0)
    whole = site.program(Role.USER).get(f"/v1/jobs/{job}/logs.txt")
    assert b"".join(chunk.data for chunk in site.live.daemon.nodes.chunks) == whole.body
    assert f'attachment; filename="job-{job}.log"' == whole.headers["content-disposition"]
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_log_goes_on_after_any_event(site: Site, job: str) -> None:
    """Whichever event was the last one, the rest follows: nothing is lost, nothing comes twice."""
    text = "naïve — €uro\n" * 3
    for piece in (text.encode()[start : start + 4] for start in range(0, len(text.encode()), 4)):
        prints(site, piece, rank=0)
        prints(site, piece, rank=1)
    events = read(site, f"/v1/jobs/{job}/logs")[:-1]
    for number, event in enumerate(events):
        rest = read(site, f"/v1/jobs/{job}/logs", Last_Event_ID=event.id)[:-1]
        for rank in (0, 1):
            parts = [
                part.data["text"] for part in (*events[: number + 1], *rest) if part.data["rank"] == rank
            ]
            assert text == "".join(parts), number


def test_a_log_of_many_ranks_begins_again_where_an_id_cannot_say_how_far_it_was_read(
    site: Site, job: str
) -> None:
    """Ids fit into a header whatever the number of ranks; past that, the browser is told to forget what it has."""
    for rank in range(2000):
        prints(site, b"a line\n", rank=rank)
    events = read(site, f"/v1/jobs/{job}/logs")[:-1]
    assert max(len(event.id) for event in events) <= 4096
    few, many = events[99], events[-1]
    assert [
        event.data["rank"] for event in read(site, f"/v1/jobs/{job}/logs", Last_Event_ID=few.id)[:-1]
    ] == [*range(100, 2000)]
    for path, header in (("", many.id), (f"?after={many.id}", "")):
        first, *rest = read(site, f"/v1/jobs/{job}/logs{path}", Last_Event_ID=header)
        assert first.kind == "reset"
        assert [event.data for event in rest[:-1]] == [event.data for event in events]


def test_a_long_log_is_cut_with_a_note(site: Site, job: str) -> None:
    """At most a mebibyte at a time; the whole is there as a file."""
    prints(site, *[b"x" * 65_536] * 40)
    *parts, cut = read(site, f"/v1/jobs/{job}/logs")
    assert (cut.kind, cut.data["bytes"]) == ("cut", streams.LOG_BYTES_MAX)
    assert sum(len(event.data["text"]) for event in parts) == streams.LOG_BYTES_MAX
    assert len(site.program(Role.USER).get(f"/v1/jobs/{job}/logs.txt").body) == 40 * 65_536


def test_following_ends_when_the_browser_leaves(site: Site, job: str) -> None:
    """The answer begins though the job prints nothing; the scheduler's stream ends with the browser's."""
    nodes = site.live.daemon.nodes
    with site.browser(Role.USER).events(f"/v1/jobs/{job}/logs?follow=true"):
        eventually(lambda: nodes.open == 1, "the log is being read")
    eventually(lambda: nodes.open == 0, "nobody reads the log any more")


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("?attempt=9", 400, "attempt"),
        ("?rank=-1", 400, "rank"),
        ("?job=1", 400, "job"),
        ("?bogus=1", 400, "bogus"),
    ],
)
def test_wrong_questions_are_problems_and_no_streams(
    site: Site, job: str, query: str, status: int, field: str
) -> None:
    """Errors at the start have their status, as with every other call."""
    assert (status, field) == site.program(Role.USER).get(f"/v1/jobs/{job}/logs{query}").problem[::2]


def test_logs_are_for_the_user_of_the_job(site: Site, job: str) -> None:
    """A viewer gets none, an operator does; a job that does not exist has none."""
    assert site.program(Role.VIEWER).get(f"/v1/jobs/{job}/logs").status == 403
    assert site.program(Role.VIEWER).get(f"/v1/jobs/{job}/logs.txt").status == 403
    assert site.program(Role.OPERATOR).get(f"/v1/jobs/{job}/logs").status == 200
    assert site.program(Role.OPERATOR).get("/v1/jobs/999/logs").status == 404


def test_a_log_whose_node_goes_away_says_so(site: Site, job: str) -> None:
    """Before the first byte with its status; the words tell when to try again."""
    nodes = site.live.daemon.nodes
    nodes.away.add(job)
    try:
        reply = site.program(Role.USER).get(f"/v1/jobs/{job}/logs")
    finally:
        nodes.away.clear()
    assert reply.problem == (503, "unavailable", "")
    assert reply.json["retry_s"] > 0


def test_positions_of_no_log_are_ignored() -> None:
    """An id that a browser invents makes the log begin at the beginning."""
    for id_ in ("", "nonsense", "1.2", "-1.0.5", "1.0." + "9" * 30, ";;;", "1.0.x"):
        assert streams.positions_in(id_) == {}, id_
    assert streams.positions_in("1.0.5;x;2.7.9") == {(1, 0): 5, (2, 7): 9}


def test_a_log_ends_with_the_token(site: Site, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows a log when its token is revoked reads nothing more of it."""
    monkeypatch.setattr(interceptor, "AGAIN_S", 0.05)
    id_, secret = site.new_token(Role.OPERATOR)
    prints(site, b"before\n")
    with site.gateway.signed_in(secret).events(f"/v1/jobs/{job}/logs?follow=true") as events:
        assert next(events).data["text"] == "before\n"
        site.revoke(id_)
        (error,) = events
    assert (error.kind, error.data["status"]) == ("error", 401)
