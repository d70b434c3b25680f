"""Jobs with plans: each plan is a column with a label, and measured rates correct the predicted ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.core.effects import Reply
from scheduler.core.facts import JobMoved, LeaseClosed, PlanStruckOut
from scheduler.core.messages import Forget, HeldLease, NodeHello, Progress, SubmitJobs
from scheduler.core.planning.admission import would_wait_for
from scheduler.core.planning.kinds import Kinds, rate_of
from scheduler.core.planning.problem import build, newcomers
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec, JobState, Move
from scheduler.model.lease import Bundle, node_of
from scheduler.model.plans import Plan
from scheduler.model.throughput import RateKey
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]
LABELS = {1: "p1", 2: "p2", 4: "p2·d2"}


def plan(gpus: int, rate: float, worker_type: str = "v100", **more: Any) -> Plan:
    """A plan of this width, whose label depends on the width."""
    return Plan(
        **{"worker_type": worker_type, "gpus": gpus, "label": LABELS.get(gpus, "p"), "rate": rate, **more}
    )


def gpt(*plans: Plan, **more: Any) -> JobSpec:
    """A job of type gpt that runs at any width for which it has a plan."""
    widths = [entry.gpus for entry in plans]
    spec = {"job_type": "gpt", "gpus": min(widths), "gpus_min": min(widths), "gpus_max": max(widths)}
    return job(**{**spec, "steps": 1e6, **more}, plans=plans)


THREE = (plan(1, 1.0), plan(2, 1.9), plan(4, 3.6))


def rates(desk: Desk, spec: JobSpec) -> list[float]:
    """The rates of a job at 1, 2 and 4 v100."""
    return [round(rate_of(desk.core.state, spec, "v100", gpus)[0], 6) for gpus in (1, 2, 4)]


def columns_of(desk: Desk) -> list[tuple[str, int, str, float]]:
    """The columns of the current problem: type, GPUs, label, rate."""
    problem, _ = build(desk.core.state, Kinds(), desk.now_s)
    columns = problem.columns
    types = [problem.worker_types[row] for row in columns.worker_type]
    return list(zip(types, columns.gpus.tolist(), columns.label, columns.first_rate.tolist(), strict=True))


def test_each_plan_is_a_column(desk_of: DeskOf) -> None:
    """The problem has a column per plan, with its label; a width or a type without a plan has none."""
    desk = desk_of(node("n1", 4), node("n2", 4, "k80"))
    desk.submit(gpt(plan(1, 1.0), plan(4, 3.6), plan(2, 0.5, "k80")))
    assert columns_of(desk) == [("k80", 2, "p2", 0.5), ("v100", 1, "p1", 1.0), ("v100", 4, "p2·d2", 3.6)]


def test_a_job_runs_by_the_plan_of_its_lease(desk_of: DeskOf) -> None:
    """The label is a part of the lease, and the job gets the width at which its plan is fastest if it is alone."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(gpt(*THREE))
    assert desk.holding(lease).lease.bundle == Bundle(("1",), "v100", 4, "p2·d2")


def test_the_range_of_a_job_selects_its_plans(desk_of: DeskOf) -> None:
    """Plans outside of the range are not used, and return with a wider range."""
    desk = desk_of(node("n1", 4))
    desk.submit(gpt(*THREE, gpus_max=2))
    assert [gpus for _, gpus, _, _ in columns_of(desk)] == [1, 2]


def test_newcomers_have_the_plans_of_the_width_they_ask_for(desk_of: DeskOf) -> None:
    """A job that came after the allocation may fill GPUs by its plan for the width that it asks for."""
    desk = desk_of(node("n1", 4))
    desk.submit(gpt(*THREE))
    state = desk.core.state
    assert newcomers(state, Kinds(), [state.jobs["1"]]) == [Bundle(("1",), "v100", 1, "p1")]


def test_layers_are_split_within_a_node(desk_of: DeskOf) -> None:
    """A plan gets its GPUs in whole groups on nodes, and waits while too few are free on one node."""
    desk = desk_of(node("n1", 3), node("n2", 3))
    (lease,) = desk.run(gpt(plan(4, 3.6, gpus_together=2)))
    by_node = Counter(node_of(gpu) for gpu in desk.holding(lease).lease.gpus)
    assert by_node == {"n1": 2, "n2": 2}
    desk.submit(gpt(plan(2, 1.9, gpus_together=2)))
    assert columns_of(desk)[-1] == ("v100", 2, "p2", 1.9)
    desk.until(desk.now_s + 8.0)
    assert desk.job("2").state is JobState.QUEUED


def test_a_plan_whose_groups_fit_no_node_is_no_column(desk_of: DeskOf) -> None:
    """Other plans of the job remain. A job with no other plan is refused, with the largest node."""
    desk = desk_of(node("n1", 3), node("n2", 3))
    desk.submit(gpt(plan(1, 1.0), plan(4, 3.6, gpus_together=4)))
    assert [gpus for _, gpus, _, _ in columns_of(desk)] == [1]
    with pytest.raises(InvalidSpec, match=r"p2·d2 needs 4 v100, 4 on one node each, and there are at most 0"):
        would_wait_for(desk.core.state, gpt(plan(4, 3.6, gpus_together=4)))


def test_jobs_with_plans_share_no_gpus(desk_of: DeskOf) -> None:
    """A plan counts on the whole memory of its GPUs, so such a job is in no pair."""
    desk = desk_of(node("n1", 1), policy="las+packing")
    desk.submit(gpt(plan(1, 1.0), job_type="cnn"), job(job_type="lm"))
    _, pairs = build(desk.core.state, Kinds(), 0.0)
    assert pairs is not None
    assert pairs.first.size == 0


# Measured rates.


def measure(desk: Desk, spec: JobSpec, gpus: int, rate: float, seconds: float = 1e6) -> None:
    """Measure the rate of a plan of this width for so long that it is trusted."""
    key = RateKey(spec.job_type, gpus, "v100", plan=LABELS[gpus])
    desk.core.state.rates.observe(key, rate * seconds, seconds, desk.core.state.settings.trust_after_s)


def test_a_prediction_is_the_rate_until_something_was_measured(desk_of: DeskOf) -> None:
    """Without measurements, rates are as predicted."""
    desk = desk_of(node("n1", 4), learn_rates=True)
    assert rates(desk, gpt(*THREE)) == [1.0, 1.9, 3.6]


def test_a_measured_plan_corrects_its_sisters(desk_of: DeskOf) -> None:
    """The rate of a measured plan is its own; its sisters move towards the median of measured ÷ predicted."""
    desk = desk_of(node("n1", 4), learn_rates=True)
    spec = gpt(*THREE)
    measure(desk, spec, 1, 0.6)
    # A third of the way from 1 to 0.6, for one of one plan and two that count as exact.
    factor = 1 - 0.4 / 3
    assert rates(desk, spec) == [0.6, round(1.9 * factor, 6), round(3.6 * factor, 6)]
    measure(desk, spec, 2, 1.9 * 0.8)
    factor = 1 - 0.3 * 2 / 4
    assert rates(desk, spec) == [0.6, 1.52, round(3.6 * factor, 6)]


def test_other_types_are_not_corrected(desk_of: DeskOf) -> None:
    """What was measured on one type says nothing about others, nor about jobs of another type."""
    desk = desk_of(node("n1", 4), node("n2", 4, "k80"), learn_rates=True)
    spec = gpt(*THREE, plan(1, 0.3, "k80"))
    measure(desk, spec, 1, 0.5)
    assert rate_of(desk.core.state, spec, "k80", 1) == (0.3, False)
    assert rates(desk, gpt(*THREE, job_type="bert")) == [1.0, 1.9, 3.6]


def test_progress_measures_the_plan_of_the_lease(desk_of: DeskOf) -> None:
    """The measured rate is kept under the label of the plan."""
    desk = desk_of(node("n1", 4), learn_rates=True)
    (lease,) = desk.run(gpt(*THREE))
    desk.until(50.0)
    desk.report(progress=(Progress(lease, 80.0, 0.0, 40.0),))
    desk.settle()
    assert {key: entry.rate for key, entry in desk.core.state.rates.measured.items()} == {
        RateKey("gpt", 4, "v100", plan="p2·d2"): 2.0
    }


def test_rates_stay_predicted_if_rates_are_not_learnt(desk_of: DeskOf) -> None:
    """Neither the setting nor a job without reports lets measurements in."""
    desk = desk_of(node("n1", 4))
    measure(desk, gpt(*THREE), 1, 0.5)
    assert rates(desk, gpt(*THREE)) == [1.0, 1.9, 3.6]
    learning = desk_of(node("n1", 4), learn_rates=True)
    measure(learning, gpt(*THREE), 1, 0.5)
    assert rates(learning, gpt(*THREE, reports_steps=False)) == [1.0, 1.9, 3.6]


# Plans that run out of memory.

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def run_out(desk: Desk, lease: str, detail: str = OUT_OF_MEMORY) -> None:
    """End the attempt of a lease with these last lines."""
    end = exited(lease, "failed", steps=0.0, code=1, detail=detail)
    desk.report(exits=(end,))


def test_a_plan_that_runs_out_of_memory_is_struck_out(desk_of: DeskOf) -> None:
    """The job is retried without using a retry up, by another of its plans."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(gpt(*THREE))
    run_out(desk, lease)
    desk.expect(LeaseClosed)
    desk.expect(PlanStruckOut, job="1", worker_type="v100", gpus=4, label="p2·d2")
    moved = desk.expect(JobMoved, job="1", move=Move.RETRY)
    assert moved.why == "plan p2·d2 ran out of memory on 4 × v100"
    desk.settle()
    assert (desk.job("1").state, desk.job("1").failures) == (JobState.QUEUED, 0)
    desk.until(900.0)
    assert desk.holding(desk.job("1").lease or "").lease.bundle == Bundle(("1",), "v100", 2, "p2")


def test_without_plans_left_the_job_fails(desk_of: DeskOf) -> None:
    """The job fails with words, and so do waiting jobs of its user and type; another user's job stays."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(gpt(plan(4, 3.6), user="ann"))
    desk.submit(gpt(plan(4, 3.6), user="ann"), gpt(plan(4, 3.6), user="bob"))
    # The plans of this job are for GPUs that were all taken away: that is no news of memory.
    desk.submit(gpt(plan(4, 3.6), user="ann", job_type="bert"))
    desk.core.state.jobs["4"].spec = msgspec.structs.replace(desk.job("4").spec, worker_types=("k80",))
    run_out(desk, lease)
    desk.settle()
    assert [desk.job(name).state for name in ("1", "2", "3", "4")] == [
        *(JobState.FAILED, JobState.FAILED, JobState.QUEUED, JobState.QUEUED)
    ]
    assert desk.job("2").why == "plan p2·d2 ran out of memory on 4 × v100, and no other plan is left"


def test_other_failures_strike_nothing_out(desk_of: DeskOf) -> None:
    """A plan stays if the attempt failed for another reason."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(gpt(*THREE, retries=1))
    run_out(desk, lease, "KeyError: 'out of memory'\n")
    desk.settle()
    assert (desk.job("1").failures, desk.core.state.rates.struck_out) == (1, set())


def test_a_plan_that_has_made_progress_is_not_struck_out(desk_of: DeskOf) -> None:
    """A plan that was measured has had enough memory, so this failure counts as any other one."""
    desk = desk_of(node("n1", 4), learn_rates=True)
    (lease,) = desk.run(gpt(*THREE, retries=1))
    measure(desk, gpt(*THREE), 4, 3.6)
    run_out(desk, lease)
    desk.settle()
    assert (desk.job("1").failures, desk.core.state.rates.struck_out) == (1, set())


@pytest.mark.parametrize("outcome", ["failed", "yielded"])
@pytest.mark.parametrize("first", ["n1", "n2"])
def test_the_rank_that_ran_out_of_memory_is_the_cause(desk_of: DeskOf, first: str, outcome: Any) -> None:
    """Whichever node reports first: the rank that lost its connection, or the one without memory, even if that was
    asked to stop before it had ended."""
    desk = desk_of(node("n1", 2), node("n2", 2))
    (lease,) = desk.run(gpt(*THREE))
    ends = {
        "n1": exited(lease, "failed", steps=0.0, code=1, detail="Connection closed by peer\n"),
        "n2": exited(lease, outcome if first == "n1" else "failed", steps=0.0, code=3, detail=OUT_OF_MEMORY),
    }
    for name in (first, "n1" if first == "n2" else "n2"):
        desk.report(name, exits=(ends[name],))
        desk.settle()
    entry = desk.job("1")
    assert {key.label for key in desk.core.state.rates.struck_out} == {"p2·d2"}
    assert (entry.state, entry.failures) == (JobState.QUEUED, 0)
    assert (entry.last_exit, entry.last_lines) == (3, OUT_OF_MEMORY)


def test_memory_is_the_cause_even_if_the_other_node_never_reports(desk_of: DeskOf) -> None:
    """When the lease of a gang lapses, the end of the rank that ran out of memory is its end."""
    desk = desk_of(node("n1", 2), node("n2", 2))
    (lease,) = desk.run(gpt(*THREE))
    desk.report("n2", exits=(exited(lease, "failed", steps=0.0, code=1, detail=OUT_OF_MEMORY),))
    desk.until(2000.0)
    assert lease not in desk.core.state.leases
    assert {key.label for key in desk.core.state.rates.struck_out} == {"p2·d2"}
    assert (desk.job("1").failures, desk.job("1").node_failures) == (0, 0)


@pytest.mark.parametrize("known", [False, True])
def test_struck_plans_are_forgotten_with_the_last_job_of_their_type(desk_of: DeskOf, known: bool) -> None:
    """Then jobs of this type may use the plan again, whether or not the type is in the throughput table."""
    desk = desk_of(node("n1", 4))
    if known:
        desk.core.state.rates.known.add("gpt")
    (lease,) = desk.run(gpt(plan(4, 3.6)))
    run_out(desk, lease)
    desk.settle()
    desk.submit(job())
    desk.until(900.0)
    desk.tell(desk.now_s, Forget(jobs=("1",), keys=()))
    desk.settle()
    assert desk.core.state.rates.struck_out == set()
    assert would_wait_for(desk.core.state, gpt(plan(4, 3.6))) == ()


def test_a_struck_plan_is_refused_at_submission(desk_of: DeskOf) -> None:
    """A job all of whose plans ran out of memory before is refused; struck plans survive a restart."""
    desk = desk_of(node("n1", 4))
    (lease,) = desk.run(gpt(plan(4, 3.6)))
    run_out(desk, lease)
    desk.settle()
    state = type(desk.core.state).restore(desk.core.state.snapshot())
    assert state.rates.struck_out == desk.core.state.rates.struck_out != set()
    with pytest.raises(InvalidSpec) as refused:
        would_wait_for(state, gpt(plan(4, 3.6)))
    assert refused.value.field == "plans"


# Submission.


def test_documents_are_bounded_in_a_submission(desk_of: DeskOf) -> None:
    """Every job of an array carries its plans, and all of them are one record of the journal."""
    desk = desk_of(node("n1", 4))
    large = gpt(plan(1, 1.0, document="x" * 60_000), array=tuple(range(2_000)))
    desk.tell(0.0, SubmitJobs(call="submit", specs=(large,)))
    assert "plans" in desk.expect(Reply).error
    assert desk.core.state.jobs == {}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"plans": (plan(1, 1.0, "k800"),)}, "plans[0].worker_type"),
        ({"plans": (plan(1, 1.0), plan(1, 2.0))}, "plans[1]"),
        ({"plans": (plan(1, float("nan")),)}, "plans[0].rate"),
        ({"plans": (plan(1, 0.0),)}, "plans[0].rate"),
        ({"plans": (plan(1, 1.0, label="a b"),)}, "plans[0].label"),
        ({"plans": (plan(1, 1.0, label=""),)}, "plans[0].label"),
        ({"plans": (plan(1, 1.0, label="x" * 65),)}, "plans[0].label"),
        ({"plans": (plan(1, 1.0, document="x" * 10_000_000),)}, "plans[0].document"),
        ({"plans": tuple(plan(n, 1.0) for n in range(1, 300))}, "plans"),
        ({"plans": tuple(plan(n, 1.0, document="x" * 60_000) for n in range(1, 20))}, "plans"),
        ({"plans": (plan(0, 1.0),)}, "plans[0].gpus"),
        ({"plans": (plan(1, 1.0, memory_gb=-1.0),)}, "plans[0].memory_gb"),
        ({"plans": (plan(1, 1.0, exchange=1.5),)}, "plans[0].exchange"),
        ({"plans": (plan(2, 1.0),)}, "gpus"),
        ({"plans": (plan(1, 1.0),), "rates": {"v100": 1.0}}, "rates"),
        ({"plans": (plan(1, 1.0),), "job_type": ""}, "job_type"),
        ({"plans": (plan(1, 1.0),), "worker_types": ("k80",)}, "plans"),
        ({"plans": (plan(4, 1.0),), "gpus": 4}, "plans"),
        ({"plans": (plan(2, 1.0, "k80"), plan(4, 1.0)), "nodes": ("n1",), "gpus_max": 4, "gpus": 2}, "plans"),
        ({"plans": (plan(1, 1.0, document="ä" * 40_000),)}, "plans[0].document"),
        ({"plans": (plan(4, 1.0, "k80", gpus_together=3),), "gpus": 4}, "plans[0].gpus"),
    ],
)
def test_plans_that_cannot_be_used_are_refused(desk_of: DeskOf, changed: dict[str, Any], field: str) -> None:
    """The error names the field at fault."""
    desk = desk_of(node("n1", 3), node("n2", 4, "k80"))
    with pytest.raises(InvalidSpec) as refused:
        would_wait_for(desk.core.state, job(**{"job_type": "gpt", **changed}))
    assert refused.value.field == field


def test_plans_of_small_models_are_accepted(desk_of: DeskOf) -> None:
    """Some kilobytes are enough, as for the script of docs/pipelines.md."""
    desk = desk_of(node("n1", 2))
    (lease,) = desk.run(gpt(plan(2, 1.0, memory_gb=8e-6)))
    assert desk.holding(lease).bundle.label == "p2"


# Agents of releases without plans.


def test_a_plan_runs_only_where_the_agent_hands_it_over(desk_of: DeskOf) -> None:
    """A node whose agent ignores plans runs other jobs only, so the plan for more GPUs than the others have waits."""
    desk = desk_of(node("n1", 4, ignores_plans=True), node("n2", 2))
    (lease,) = desk.run(gpt(*THREE))
    assert desk.holding(lease).lease.gpus == ("n2:0", "n2:1")
    assert [gpus for _, gpus, _, _ in columns_of(desk)] == [1, 2]
    (other,) = desk.run(job(gpus=4))
    assert {node_of(gpu) for gpu in desk.holding(other).lease.gpus} == {"n1"}


def test_a_job_is_refused_if_all_agents_ignore_plans(desk_of: DeskOf, wording: Wording) -> None:
    """The error names a node whose agent has to be upgraded; after the upgrade the job runs there."""
    desk = desk_of(node("n1", 4, ignores_plans=True))
    with pytest.raises(InvalidSpec) as refused:
        would_wait_for(desk.core.state, gpt(*THREE))
    assert refused.value.field == "plans"
    wording(str(refused.value))
    desk.tell(desk.now_s, NodeHello(spec=node("n1", 4)))
    desk.settle()
    (lease,) = desk.run(gpt(*THREE))
    assert desk.holding(lease).bundle.label == "p2·d2"


@pytest.mark.parametrize("runs", [True, False])
def test_an_older_agent_keeps_only_leases_that_run(desk_of: DeskOf, runs: bool) -> None:
    """If an agent that ignores plans takes over a node, a lease that was only sent is over; one that runs goes on."""
    desk = desk_of(node("n1", 4))
    desk.submit(gpt(*THREE))
    desk.until(8.0)
    held = (HeldLease(lease="1", steps=1.0, ran_s=1.0),) if runs else ()
    desk.tell(desk.now_s, NodeHello(spec=node("n1", 4, ignores_plans=True), held=held))
    desk.settle()
    assert list(desk.core.state.leases) == (["1"] if runs else [])
    assert desk.job("1").state is (JobState.RUNNING if runs else JobState.QUEUED)
