"""explain: each reason in a state that leads to it, with the right jobs and types named, and never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest

from scheduler.core.core import Core
from scheduler.core.messages import (
    JobCommand,
    Message,
    NodeCommand,
    NodeHello,
    NodeReport,
    NodeSilent,
    SubmitJobs,
)
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.explain import REASONS, Explanation, Reason, explain, render
from scheduler.explain.answer import Basis
from scheduler.model.errors import NotFound
from scheduler.model.jobs import Dependency, JobSpec, JobState
from scheduler.model.launch import TerminalUse
from scheduler.sim import simulate as simulation
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from tests.support.desk import Desk, exited, job, node
from tests.support.explained import CASES, ROUND_S, Case, ended, no_share, running_job, started, two_for_one
from tests.support.wording import Wording

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_reason_is_given_with_jobs_and_types(make: Callable[[], Case], wording: Wording) -> None:
    """The explanation has the dominant reason, the right jobs and types, what would change it, and the start."""
    case = make()
    now_s = case.desk.now_s
    before = case.state.snapshot()
    answer = explain(case.state, case.job, now_s)
    assert answer.reason == make.__name__, render(answer)
    assert set(case.changes) <= {change.what for change in answer.would_change}
    assert set(case.others) <= set(answer.others)
    if case.basis is not None:
        assert answer.start_basis == case.basis
        assert answer.expected_start_s is not None
        assert answer.expected_start_s >= now_s
    assert case.state.snapshot() == before
    sound(answer, case.state)
    wording(render(answer))


def sound(answer: Explanation, state: SchedulerState) -> None:
    """Check the properties that every explanation has."""
    assert answer.reason in REASONS[state.jobs[answer.job].state]
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Explanation) == answer
    assert answer.text.endswith(".")
    assert answer.text in render(answer)
    assert "nan" not in re.split(r"\W", render(answer))
    assert (answer.expected_start_s is None) == (answer.start_sure == "unknown") == (answer.start_basis == "")
    assert answer.expected_start_s is None or answer.expected_start_s >= answer.at_s
    assert set(answer.others) <= state.jobs.keys() - {answer.job}
    for way in answer.evidence:
        assert 0 <= way.gpus_fitting <= way.gpus_free <= way.gpus_total
        assert len(way.held_by) <= max(way.holders, len({h.job for h in way.held_by}))
        assert {holder.job for holder in way.held_by} <= state.jobs.keys()


def test_every_reason_has_its_case() -> None:
    """Every reason has a case that leads to it, and every state of a job has reasons."""
    assert [make.__name__ for make in CASES] == list(dict.fromkeys(make.__name__ for make in CASES))
    assert {make.__name__ for make in CASES} == set(Reason)
    assert set(REASONS) == set(JobState)
    assert set().union(*REASONS.values()) == set(Reason)


def test_every_reason_is_documented() -> None:
    """docs/explain.md names each reason, each basis of an estimate, and each thing that would change the answer."""
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    changes = {change.what for make in CASES for case in [make()] for change in explained(case).would_change}
    bases = set(get_args(Basis)) - {""}
    assert [code for code in sorted({*Reason, *changes, *bases}) if f"`{code}`" not in page] == []


def explained(case: Case) -> Explanation:
    return explain(case.state, case.job, case.desk.now_s)


def test_an_unknown_job_is_not_found() -> None:
    """Asking about an unknown job raises NotFound with its id."""
    with pytest.raises(NotFound, match="'7'"):
        explain(SchedulerState(), "7")


def test_the_reason_of_a_failed_start_is_shown(wording: Wording) -> None:
    """The node, the end of the log and the command for all of it: while the job pauses, and when it has failed."""
    desk = Desk(node())
    trouble = "one\ntwo\n[gavel: cannot run nope: No such file or directory]\n"
    for lease in (*desk.run(job(retries=1)), "2"):
        desk.report(exits=(exited(lease, "failed", code=127, detail=trouble),))
        answer = explain(desk.core.state, "1", desk.now_s)
        assert answer.last_lines == trouble
        assert desk.job("1").why.endswith(("started on n1", "after 1 of 1 retries"))
        wording(render(answer))
        desk.until(ROUND_S)
    assert explain(desk.core.state, "1", desk.now_s).reason == Reason.FAILED


def test_the_use_of_a_terminal_is_shown(wording: Wording) -> None:
    """Whether a client is attached, how to come back, and how long the job waits for one."""
    desk = Desk(node())
    desk.run(job())
    answer = explain(desk.core.state, "1", desk.now_s)
    for use in (
        TerminalUse(attached=True, keep_s=600.0),
        TerminalUse(attached=False, keep_s=600.0, until_s=desk.now_s + 420.0),
        TerminalUse(attached=False, keep_s=600.0),
        TerminalUse(attached=False),
    ):
        line = render(msgspec.structs.replace(answer, terminal=use)).splitlines()[2]
        assert "`gavel attach 1`" in line
        wording(line)


def test_evidence_is_listed_per_way_to_run() -> None:
    """Each way to run has its rate, share, times, prices and holders, and ways with a share come first."""
    desk = two_for_one()
    first = running_job(desk)
    (way,) = explain(desk.core.state, "2" if first == "1" else "1", desk.now_s).evidence
    assert (way.worker_type, way.gpus, way.rate, way.share) == ("v100", 1, 10.0, 0.5)
    # Half of the round, until now.
    assert (way.entitled_s, way.received_s) == (0.5 * desk.now_s, 0.0)
    assert (way.gpus_total, way.gpus_free, way.gpus_fitting, way.holders) == (1, 0, 0, 1)
    assert way.price_per_gpu is not None
    assert [holder.job for holder in way.held_by] == [first]
    assert way.held_by[0].until_s == pytest.approx(desk.now_s + 1e5, rel=0.01)


def test_a_promised_next_round_is_kept() -> None:
    """A job that is expected to start at the next boundary does, if nothing happens meanwhile."""
    desk = two_for_one(stay_rounds=0.0)
    promised = 0
    for number in range(1, 12):
        desk.until(number * ROUND_S)
        waiting = [j.id for j in desk.core.state.active.values() if j.lease is None and j.leaving is None]
        answers = [explain(desk.core.state, name, desk.now_s) for name in waiting]
        desk.until((number + 1) * ROUND_S + 8 - 20)
        started(desk)
        desk.until((number + 1) * ROUND_S + 7)
        for answer in answers:
            if answer.start_basis == "next_round":
                promised += 1
                assert desk.job(answer.job).lease is not None
        for holding in list(desk.core.state.leases.values()):
            if holding.phase == "stopping":
                ended(desk, holding.lease.id, "yielded", desk.job(holding.lease.job).steps_done + 10)
        started(desk)
    assert promised > 0


def test_users_get_aligned_lines() -> None:
    """The rendering has the reason, the text, an aligned table of ways, what would change it, and the start."""
    case = no_share()
    answer = explain(case.state, case.job, case.desk.now_s)
    lines = render(answer).splitlines()
    assert lines[0] == "job 2: queued (no_share)"
    table = [line for line in lines if line.startswith("  ") and not line.startswith("  -")]
    assert [table[0].index("free") + len("free")] == [table[1].index("0/1") + len("0/1")]
    assert [line.removeprefix("  - ") for line in lines if line.startswith("  - ")] == [
        change.text for change in answer.would_change
    ]
    assert answer.expected_start_s is not None
    assert "1 h" in lines[-1]


@pytest.mark.parametrize(("policy", "seed"), [("las", 1), ("las+packing", 2), ("fifo", 3), ("min_cost", 4)])
def test_any_state_of_a_simulated_week_can_be_explained(
    policy: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes fail, gangs wait, jobs are packed: every job is explained, and the reason fits its state."""
    chance = Random(seed)
    reasons: set[Reason] = set()

    class ExplainingCore(Core):
        """A core that explains some of its jobs after every few batches."""

        def handle_all(self, now_s: float, messages: Sequence[Message]) -> Outcome:
            outcome = super().handle_all(now_s, messages)
            if chance.random() < 0.1:
                state = self.state
                chosen_jobs = [
                    *chance.sample(sorted(state.active), min(len(state.active), 4)),
                    *list(state.jobs)[:1],
                ]
                for name in chosen_jobs:
                    answer = explain(state, name, now_s + chance.choice([0.0, 0.0, 100.0]))
                    sound(answer, state)
                    reasons.add(answer.reason)
            return outcome

    monkeypatch.setattr(simulation, "Core", ExplainingCore)
    run = Run(
        policy=policy,
        cluster={"v100": 8, "a100": 8, "t4": 4},
        gpus_per_node=4,
        workload="mixed-day",
        rate_per_h=6.0,
        jobs=40,
        mtbf_h=30.0,
        seed=seed,
    )
    simulation.simulate(prepare(run).options)
    assert len(reasons) >= 6


def any_spec(chance: Random, submitted: Sequence[str]) -> JobSpec:
    """A job with any features that can decide whether it runs."""
    gpus = chance.choice([1, 1, 1, 2, 4])
    return job(
        job_type=chance.choice(["cnn", "cnn", "lm", "new", ""]),
        gpus=gpus,
        gpus_min=chance.choice([None, 1]),
        gpus_max=chance.choice([None, 4]),
        gpus_together=chance.choice([1, 1, gpus]),
        steps=chance.choice([None, 100.0, 30000.0, 1e6]),
        weight=chance.choice([0.01, 1.0, 30.0]),
        min_run_s=chance.choice([0.0, 0.0, 2000.0]),
        preemptible=chance.random() < 0.9,
        earliest_start_s=chance.choice([0.0, 0.0, 500.0]),
        time_limit_s=chance.choice([None, None, 3000.0]),
        cpus=chance.choice([0.0, 0.0, 3.0 * gpus]),
        labels=chance.choice([{}, {}, {"zone": "a"}]),
        excluded_worker_types=chance.choice([(), (), ("v100",)]),
        rates=chance.choice([{}, {}, {"k80": 3.0}]),
        after=tuple(Dependency(job=name, when="ended") for name in submitted[-1:] if chance.random() < 0.2),
    )


def anything(desk: Desk, chance: Random) -> None:
    """Send the core a random message; it may be refused."""
    state = desk.core.state
    node_name = chance.choice(list(state.nodes))
    message: Message = SubmitJobs(specs=(any_spec(chance, list(state.active)),))
    match chance.randrange(8):
        case 0 if state.jobs:
            action: Any = chance.choice(["cancel", "hold", "release", "requeue"])
            message = JobCommand(job=chance.choice(list(state.jobs)), action=action)
        case 1:
            message = NodeCommand(node=node_name, action=chance.choice(["drain", "resume", "resume"]))
        case 2:
            message = chance.choice([NodeSilent(node=node_name), NodeHello(spec=state.nodes[node_name].spec)])
        case 3 if state.leases:
            holding = chance.choice(list(state.leases.values()))
            outcome = chance.choice(["finished", "yielded", "failed", "node_failed"])
            name = chance.choice(holding.lease.gpus).rpartition(":")[0]
            steps = state.jobs[holding.lease.job].steps_done + 10.0
            end = exited(holding.lease.id, outcome, steps)
            generation = state.nodes[name].generation
            message = NodeReport(node=name, generation=generation, exits=(end,), broken_gpus=())
    desk.tell(desk.now_s, message)
    desk.settle()


@pytest.mark.parametrize("seed", range(12))
def test_any_state_can_be_explained(seed: int) -> None:
    """After any commands, failures and submissions of any jobs, every job can be explained at any time."""
    chance = Random(seed)
    policy = chance.choice(["las", "las+packing", "fifo", "min_cost", "max_throughput"])
    settings: dict[str, Any] = {
        "policy": policy,
        "reserve_after": 1,
        "learn_rates": chance.random() < 0.5,
        "fill_mid_round": chance.random() < 0.7,
        "preemptions_max": chance.choice([None, None, 0, 1]),
    }
    nodes = [
        node("n1", labels={"zone": "a"}),
        node("n2", gpus=4, cpus=12.0),
        node("n3", worker_type="k80", cpus=4.0),
        node("n4", worker_type="k80", gpus=1),
    ]
    desk = Desk(*nodes, **settings)
    for _ in range(60):
        anything(desk, chance)
        desk.until(desk.now_s + chance.choice([0.0, 7.0, 100.0, 400.0]))
        if chance.random() < 0.8:
            started(desk)
        for name in desk.core.state.jobs:
            sound(explain(desk.core.state, name, desk.now_s), desk.core.state)
