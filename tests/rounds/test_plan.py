"""Selection of jobs in small examples: one round each, from the current leases to the plan."""

import pytest

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.check import check_plan
from scheduler.rounds.inputs import Need, RoundInputs, RoundPlan
from scheduler.rounds.plan import plan_round
from tests.support.rounds import Column, column, hold, node, nodes, round_of


def planned(inputs: RoundInputs) -> RoundPlan:
    """Plan the round and pass the audit."""
    plan = plan_round(inputs)
    assert check_plan(inputs, plan) == []
    return plan


def gpus_of(plan: RoundPlan) -> dict[str, tuple[GpuId, ...]]:
    """GPUs by jobs, as "a" or "a+b"."""
    return {"+".join(bundle.jobs): gpus for bundle, gpus in plan.placements.items()}


def first(jobs: str, **facts: object) -> Column:
    """Return a column whose turn comes early."""
    return column(jobs, **{"entitled_s": 1000, "received_s": 900, **facts})


def later(jobs: str, **facts: object) -> Column:
    """Return a column whose turn comes after the `first` ones."""
    return column(jobs, **{"entitled_s": 1000, "received_s": 1000, **facts})


# ---------------------------------------------------------------------------------------- choosing


def test_the_best_rank_runs() -> None:
    """Of two columns for one GPU, the one with the better rank runs."""
    assert gpus_of(planned(round_of([later("a"), first("b")], nodes(1)))) == {"b": ("n0:0",)}


def test_a_job_runs_once() -> None:
    """A job with several columns runs in the best of them; the GPUs of the others go to other jobs."""
    columns = [first("a", worker_type="v100"), later("a", worker_type="k80"), later("b", worker_type="k80")]
    cluster = [node("n0", 1, 0), node("n1", 1, 1)]
    plan = planned(round_of(columns, cluster, worker_types=("k80", "v100")))
    assert gpus_of(plan) == {"a": ("n1:0",), "b": ("n0:0",)}


def test_gangs_get_all_or_nothing() -> None:
    """A gang that is too wide for the remaining GPUs gets none, and smaller jobs of lower rank run."""
    plan = planned(round_of([first("a", gpus=2), later("b", gpus=2), later("c", share=0.1)], nodes(3)))
    assert set(gpus_of(plan)) == {"a", "c"}


def test_a_wide_gang_has_its_turn_at_the_boundary() -> None:
    """Without pinned jobs the first in rank may take all GPUs, however many jobs run on them."""
    held = {**hold("b", "n0:0"), **hold("c", "n1:0"), **hold("d", "n2:0")}
    columns = [first("a", gpus=3), *(later(job) for job in "bcd")]
    plan = planned(round_of(columns, nodes(3), held))
    assert set(gpus_of(plan)) == {"a"}
    assert plan.skipped == ()


def test_backfill_takes_what_is_left() -> None:
    """Idle GPUs go to columns without a share only if these may be backfilled."""
    columns = [first("a"), column("b", share=0.0, backfill=False), column("c", share=0.0)]
    assert set(gpus_of(planned(round_of(columns, nodes(3))))) == {"a", "c"}


def test_an_old_claim_without_a_share_does_not_run() -> None:
    """A claim from an earlier allocation does not count if the current one gives the column no share."""
    columns = [column("a", share=0.0, entitled_s=9000, backfill=False)]
    assert gpus_of(planned(round_of(columns, nodes(1)))) == {}


def test_nothing_to_do() -> None:
    """Without candidates, or without nodes, the plan is empty."""
    assert planned(round_of([], [], number=7)).number == 7
    assert gpus_of(planned(round_of([column("a")], []))) == {}


# ------------------------------------------------------------------------------------------ pinned


def test_pinned_jobs_keep_their_gpus() -> None:
    """A pinned job keeps exactly its GPUs, even with the worst rank or without a column."""
    held = {**hold("a", "n0:0", pinned=True), **hold("b", "n1:0", pinned=True)}
    columns = [column("a", share=0.0, backfill=False), first("c"), first("d")]
    plan = planned(round_of(columns, nodes(3), held))
    assert gpus_of(plan).keys() >= {"a", "b"}
    assert gpus_of(plan)["a"] == ("n0:0",)
    assert gpus_of(plan)["b"] == ("n1:0",)
    assert len(plan.placements) == 3


def test_a_pinned_job_stays_on_a_draining_node() -> None:
    """A draining node is not among the round's nodes; the job pinned on it continues, and no partner joins it."""
    held = hold("a", "old:0", pinned=True)
    plan = planned(round_of([later("a"), first("a b"), first("c")], nodes(1), held))
    assert gpus_of(plan) == {"a": ("old:0",), "c": ("n0:0",)}


def test_the_partner_of_a_pinned_job_may_leave() -> None:
    """The pair is not chosen, and the pinned job runs on alone."""
    pair = {**hold("a b", "n0:0")}
    held = {**pair, "a": hold("a b", "n0:0", pinned=True)["a"]}
    plan = planned(round_of([column("a b", share=0.0, backfill=False), column("c")], nodes(1), held))
    assert plan.placements == {Bundle(("a",), "v100", 1): ("n0:0",)}


def test_a_partner_may_join_a_pinned_job() -> None:
    """The pair ranks above the pinned job alone: the partner joins on its GPUs."""
    held = hold("a", "n1:0", pinned=True)
    plan = planned(round_of([later("a"), first("a b"), first("c")], nodes(2), held))
    assert gpus_of(plan) == {"a+b": ("n1:0",), "c": ("n0:0",)}


def test_no_partner_joins_when_alone_ranks_first() -> None:
    """The pinned job alone ranks above the pair, and stays alone."""
    plan = planned(round_of([first("a"), later("a b")], nodes(1), hold("a", "n0:0", pinned=True)))
    assert gpus_of(plan) == {"a": ("n0:0",)}


def test_two_pinned_jobs_stay_a_pair() -> None:
    """Two jobs that are both pinned stay together, whatever columns they have."""
    held = hold("a b", "n0:0", pinned=True)
    assert gpus_of(planned(round_of([first("a"), first("b")], nodes(2), held))) == {"a+b": ("n0:0",)}


def test_a_partner_joins_only_with_what_it_needs() -> None:
    """If the node of the pinned job lacks the CPUs that the partner needs, the pinned job stays alone."""
    held = hold("a", "n0:0", pinned=True)
    cluster = [node("n0", 1, cpus=4.0)]
    for cpus, expected in ((1.0, {"a+b"}), (2.0, {"a"})):
        needs = {"a": Need(cpus_per_gpu=3.0), "b": Need(cpus_per_gpu=cpus)}
        assert set(gpus_of(planned(round_of([first("a b")], cluster, held, needs=needs)))) == expected


# ------------------------------------------------------------------------------------- reservation


def kept_out(skipped: int, **facts: object) -> RoundInputs:
    """Return a round with a gang of two that is first, a pinned job on one of two GPUs, and a job for the other."""
    columns = [
        first("gang", gpus=2, skipped=skipped),
        later("other"),
        column("pin", entitled_s=1, received_s=99),
    ]
    return round_of(columns, nodes(2), hold("pin", "n0:0", pinned=True), **facts)


def test_a_gang_that_is_kept_out_is_skipped() -> None:
    """A pinned job of lower rank has its GPUs: the gang is counted as skipped, and other jobs run."""
    plan = planned(kept_out(skipped=1))
    assert set(gpus_of(plan)) == {"pin", "other"}
    assert [bundle.jobs for bundle in plan.skipped] == [("gang",)]
    assert plan.reserved == {}


def test_gpus_are_held_back_for_a_gang_that_waited() -> None:
    """After enough skipped rounds the free GPU is held back for the gang, and no lower job takes it."""
    plan = planned(kept_out(skipped=2))
    assert set(gpus_of(plan)) == {"pin"}
    assert plan.reserved == {"v100": Bundle(("gang",), "v100", 2)}


def test_no_job_overtakes_a_gang_with_a_reservation() -> None:
    """However much other jobs are due meanwhile, the GPUs are held back until the gang has them."""
    inputs = round_of(
        [first("gang", gpus=2, skipped=9), column("urgent"), later("other")],
        nodes(3),
        {**hold("pin", "n0:0", pinned=True), **hold("pin2", "n1:0", pinned=True)},
    )
    plan = planned(inputs)
    assert set(gpus_of(plan)) == {"pin", "pin2"}
    assert plan.reserved == {"v100": Bundle(("gang",), "v100", 2)}


def test_a_job_on_a_drained_node_has_no_claim_to_stay() -> None:
    """A job on a drained node competes like a new one; jobs on other nodes do not have to move for it."""
    running = {**hold("leaving", "gone:0"), **hold("staying", "n0:0")}
    columns = [column(job, share=0.5, entitled_s=500, received_s=500) for job in ("leaving", "staying")]
    for order in (columns, columns[::-1]):
        plan = planned(round_of(order, nodes(1), running, stay_s=720.0))
        assert set(gpus_of(plan)) == {"staying"}


def test_one_reservation_per_worker_type() -> None:
    """The first gang in rank gets the reservation of a type; each type has its own."""
    columns = [
        *(first("gang", gpus=2, skipped=9, worker_type=kind) for kind in ("k80", "v100")),
        *(later("next", gpus=2, skipped=9, worker_type=kind) for kind in ("k80", "v100")),
    ]
    cluster = [*nodes(2, 1, 0, "k"), *nodes(2, 1, 1, "v")]
    held = {
        **hold("p", "k0:0", worker_type="k80", pinned=True),
        **hold("q", "v0:0", worker_type="v100", pinned=True),
    }
    plan = planned(round_of(columns, cluster, held, worker_types=("k80", "v100")))
    assert {kind: bundle.jobs for kind, bundle in plan.reserved.items()} == {
        "k80": ("gang",),
        "v100": ("gang",),
    }


def test_incumbents_run_on_where_gpus_are_held_back() -> None:
    """A running job, which can be moved at the next boundary, may stay until then; a new job may not start."""
    inputs = round_of(
        [first("gang", gpus=3, skipped=9), later("stays"), later("new")],
        nodes(3),
        {**hold("pin", "n0:0", pinned=True), **hold("stays", "n2:0")},
    )
    assert gpus_of(planned(inputs)) == {"pin": ("n0:0",), "stays": ("n2:0",)}


def test_a_gang_of_lower_rank_is_not_skipped() -> None:
    """If columns of better rank take the GPUs, the gang does not count as skipped, and no GPUs are held back."""
    inputs = round_of(
        [first("a"), first("b"), later("gang", gpus=2, skipped=9)],
        nodes(3),
        hold("a", "n0:0", pinned=True),
    )
    plan = planned(inputs)
    assert plan.skipped == ()
    assert plan.reserved == {}


# ------------------------------------------------------------------------------- preemptions limited


def crowd(most: int | None) -> RoundInputs:
    """Return a round with four running jobs, and four new ones that rank above them."""
    running = [column(f"r{i}", entitled_s=1000, received_s=1000 + i) for i in range(4)]
    columns = [*running, *(first(f"new{i}") for i in range(4))]
    held = {job: now for i in range(4) for job, now in hold(f"r{i}", f"n{i}:0").items()}
    return round_of(columns, nodes(4), held, preemptions_max=most)


@pytest.mark.parametrize(
    ("most", "stay"), [(None, ""), (4, ""), (2, "r0 r1"), (1, "r0 r1 r2"), (0, "r0 r1 r2 r3")]
)
def test_preemptions_are_limited(most: int | None, stay: str) -> None:
    """Beyond the limit running jobs keep their GPUs, those of the best rank first."""
    plan = planned(crowd(most))
    assert " ".join(sorted(job for job in gpus_of(plan) if job.startswith("r"))) == stay
    assert len(plan.placements) == 4


def test_a_job_whose_node_is_gone_does_not_count() -> None:
    """A job whose node is gone loses its GPUs whatever the limit."""
    held = {**hold("a", "gone:0"), **hold("b", "n0:0")}
    plan = planned(round_of([first("a"), later("b")], nodes(1), held, preemptions_max=0))
    assert gpus_of(plan) == {"b": ("n0:0",)}


def test_a_pair_counts_as_two() -> None:
    """If one job may be preempted, a pair keeps its GPUs."""
    held = {**hold("a b", "n0:0"), **hold("c", "n1:0")}
    columns = [later("a b", received_s=1100), later("c"), first("d"), first("e")]
    plan = planned(round_of(columns, nodes(2), held, preemptions_max=1))
    assert "a+b" in gpus_of(plan)
    assert "c" not in gpus_of(plan)


def test_a_gang_gathers_gpus_under_the_limit() -> None:
    """With a reservation, GPUs of preempted jobs stay free until there are enough for the gang."""
    held = {job: now for i in range(4) for job, now in hold(f"r{i}", f"n{i}:0").items()}
    columns = [first("gang", gpus=4, skipped=2), *(later(f"r{i}", received_s=1000 + i) for i in range(4))]
    plan = planned(round_of(columns, nodes(4), held, preemptions_max=1))
    assert set(gpus_of(plan)) == {"r0", "r1", "r2"}
    assert set(plan.reserved) == {"v100"}
