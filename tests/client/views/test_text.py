"""Results as text: `repr` is a line, `print` says it all, and no name reaches the terminal unescaped."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gavel.client.results import PackedRate, TerminalUse
from gavel.client.views.job_details import history, rates
from gavel.client.views.job_text import job_where
from tests.client.views.examples import (
    ALLOCATION,
    EXPLANATION,
    FAILED,
    NOW,
    PLACEMENT,
    RUNNING,
    WAITING,
    queue,
)
from tests.support.wording import Wording


def test_jobs(wording: Wording) -> None:
    """A job has its name, its state, its place or the reason why it has none, and how far it is."""
    stopping = replace(RUNNING, placement=replace(PLACEMENT, phase="sent"))
    terminals = [
        replace(RUNNING, placement=replace(PLACEMENT, terminal=use))
        for use in (
            TerminalUse(attached=True, keep_s=600.0, until=None),
            TerminalUse(attached=False, keep_s=600.0, until=NOW + timedelta(minutes=7)),
            TerminalUse(attached=False, keep_s=None, until=None),
        )
    ]
    for job in terminals:
        wording(job_where(job))
        wording(dict(history(job, NOW))["terminal"])
    for job in (WAITING, RUNNING, FAILED, stopping):
        wording(repr(job))
        wording(str(job))


def test_the_rate_of_a_packed_job_has_its_source(wording: Wording) -> None:
    """An estimate has its standard deviation; a job that is alone has no such line."""
    for packed in (
        PackedRate(4.25, "table", 0.0),
        PackedRate(4.25, "measured", 0.0),
        PackedRate(4.25, "estimated", 0.31),
    ):
        job = replace(RUNNING, placement=replace(PLACEMENT, with_job="7", packed_rate=packed))
        wording(dict(history(job, NOW))["packed"])
        # The page shows the same, before what the job has measured.
        measured = replace(job, measured={"wait": 0.25})
        assert list(rates(measured)) == [
            ("packed", dict(history(job, NOW))["packed"]),
            ("waits", "25.0% of the time for data"),
        ]
    assert "packed" not in dict(history(RUNNING, NOW))
    assert list(rates(RUNNING)) == list(rates(WAITING)) == []


def test_a_queue_is_a_table(wording: Wording) -> None:
    """In a terminal, a queue is its table; jobs that are left out are counted."""
    wording(repr(queue(WAITING, RUNNING)))
    wording(str(queue(WAITING, FAILED, total=9)))
    wording(str(queue()))
    assert str(queue(*[WAITING] * 61)).endswith("\nand 1 more job")


def test_explanations_and_allocations(wording: Wording) -> None:
    """`repr` names them, `print` has the evidence and the shares."""
    for result in (EXPLANATION, ALLOCATION, replace(ALLOCATION, failed="no solver", shares=())):
        wording(repr(result))
        wording(str(result))


def test_control_characters_are_escaped() -> None:
    """A name cannot move the cursor or begin a line."""
    job = replace(WAITING, spec=replace(WAITING.spec, name="a\x1b[2Jb\nc"))
    for result in (job, queue(job), replace(EXPLANATION, reason="\x1b", rendered="x\x1b[2J")):
        assert "\x1b" not in f"{result!r}{result}"
    assert str(queue(job)).count("\n") == 2
