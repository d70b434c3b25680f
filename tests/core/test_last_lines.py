"""The last lines of a failed attempt and the launch of a job are kept in the core's state."""

from __future__ import annotations

import pytest

from scheduler.core.facts import LeaseClosed
from scheduler.core.messages import SubmitJobs
from scheduler.core.state import SchedulerState
from scheduler.journal.codec import decode_facts
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.launch import Launch
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording


def test_the_last_failure_is_kept_with_its_last_lines() -> None:
    """Exit code and last lines of the last failed attempt are kept, through a snapshot too."""
    desk = Desk(node())
    (lease,) = desk.run(job(retries=1))
    desk.report(exits=(exited(lease, "failed", 10.0, code=3, detail="out of memory"),))
    kept = SchedulerState.restore(desk.core.state.snapshot()).jobs["1"]
    assert (kept.last_exit, kept.last_lines) == (3, "out of memory")
    assert {"v100": kept.run_s} == kept.time_s


@pytest.mark.parametrize(
    ("code", "detail", "named"),
    [
        (127, "[gavel: env_from.TOKEN: there is no secret]\n", "started on n1"),
        (127, "sh: 1: train: not found\n", "code 127"),
        (3, "[gavel: rank 1 ended]\n", "code 3"),
        (-9, "", "SIGKILL"),
        (-11, "", "SIGSEGV"),
        (-99, "", "code -99"),
        (137, "", "code 137: SIGKILL"),
        (128, "", "code 128"),
        (255, "", "code 255"),
    ],
)
def test_a_program_that_never_started_did_not_exit(
    code: int, detail: str, named: str, wording: Wording
) -> None:
    """The reason of a failed start contains no name of a secret, which only readers of the log may see."""
    desk = Desk(node())
    (lease,) = desk.run(job())
    desk.report(exits=(exited(lease, "failed", code=code, detail=detail),))
    why = desk.job("1").why
    assert desk.job("1").state == JobState.FAILED
    assert named in why
    assert "TOKEN" not in why
    assert ("exited" in why) == (named.startswith("code"))
    wording(why)


def test_of_a_gang_the_rank_that_died_first_is_quoted() -> None:
    """Lines of ranks that were stopped because another rank died do not replace the dead rank's lines."""
    desk = Desk(node("n1", gpus=1), node("n2", gpus=1))
    (lease,) = desk.run(job(gpus=2))
    desk.report("n2", exits=(exited(lease, "failed", 10.0, code=7, detail="nan in step 9"),))
    desk.settle()
    desk.report("n1", exits=(exited(lease, "yielded", 10.0),))
    assert (desk.job("1").last_exit, desk.job("1").last_lines) == (7, "nan in step 9")


def test_how_a_job_is_started_survives_a_snapshot() -> None:
    """A restored job has the command and environment that it was submitted with."""
    launch = Launch(command=("python", "train.py"), env={"LR": "0.1"})
    desk = Desk()
    desk.tell(0.0, SubmitJobs(specs=(JobSpec(launch=launch),)))
    assert launch == SchedulerState.restore(desk.core.state.snapshot()).jobs["1"].spec.launch


def test_an_exit_of_an_older_journal_can_be_read() -> None:
    """An exit in a journal from before last lines were kept has no last lines."""
    old = b'[{"type":"LeaseClosed","exit":["1","failed",1.0,1.0,1.0,1.0,3]}]'
    (fact,) = decode_facts(old)
    assert isinstance(fact, LeaseClosed)
    assert (fact.exit.code, fact.exit.detail) == (3, "")
