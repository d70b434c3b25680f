"""Who runs, told by small examples: one round each, from what is held to what is planned."""

import pytest

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.check import check_plan
from scheduler.rounds.inputs import Need, RoundInputs, RoundPlan
from scheduler.rounds.plan import plan_round
from tests.support.rounds import Column, column, hold, node, nodes, round_of


def planned(inputs: RoundInputs) -> RoundPlan:
    """The plan, once the audit has agreed."""
    plan = plan_round(inputs)
    assert check_plan(inputs, plan) == []
    return plan


def who(plan: RoundPlan) -> dict[str, tuple[GpuId, ...]]:
    """GPUs by jobs, as "a" or "a+b"."""
    return {"+".join(bundle.jobs): gpus for bundle, gpus in plan.placements.items()}


def first(jobs: str, **facts: object) -> Column:
    """A column whose turn comes early."""
    return column(jobs, **{"entitled_s": 1000, "received_s": 900, **facts})


def later(jobs: str, **facts: object) -> Column:
    """A column whose turn comes after the `first` ones."""
    return column(jobs, **{"entitled_s": 1000, "received_s": 1000, **facts})


# ---------------------------------------------------------------------------------------- choosing


def test_the_best_rank_runs() -> None:
    """Of two columns for one GPU, the one runs whose turn it is."""
    assert who(planned(round_of([later("a"), first("b")], nodes(1)))) == {"b": ("n0:0",)}


def test_a_job_runs_once() -> None:
    """A job with several columns runs in the best of them; the others' GPUs go to somebody else."""
    columns = [first("a", worker_type="v100"), later("a", worker_type="k80"), later("b", worker_type="k80")]
    cluster = [node("n0", 1, 0), node("n1", 1, 1)]
    plan = planned(round_of(columns, cluster, worker_types=("k80", "v100")))
    assert who(plan) == {"a": ("n1:0",), "b": ("n0:0",)}


def test_gangs_get_all_or_nothing() -> None:
    """A gang that is too wide for what is left gets nothing, and smaller ones below it run."""
    plan = planned(round_of([first("a", gpus=2), later("b", gpus=2), later("c", share=0.1)], nodes(3)))
    assert set(who(plan)) == {"a", "c"}


def test_a_wide_gang_has_its_turn_at_the_boundary() -> None:
    """Nothing is pinned, so that all GPUs are there for whoever is first, however many run."""
    held = {**hold("b", "n0:0"), **hold("c", "n1:0"), **hold("d", "n2:0")}
    columns = [first("a", gpus=3), *(later(job) for job in "bcd")]
    plan = planned(round_of(columns, nodes(3), held))
    assert set(who(plan)) == {"a"}
    assert plan.skipped == ()


def test_backfill_takes_what_is_left() -> None:
    """Idle GPUs go to columns without a share that may fill them, and to no others."""
    columns = [first("a"), column("b", share=0.0, backfill=False), column("c", share=0.0)]
    assert set(who(planned(round_of(columns, nodes(3))))) == {"a", "c"}


def test_an_old_claim_without_a_share_does_not_run() -> None:
    """Where the allocation in force gives nothing, a claim from an earlier one does not count."""
    columns = [column("a", share=0.0, entitled_s=9000, backfill=False)]
    assert who(planned(round_of(columns, nodes(1)))) == {}


def test_nothing_to_do() -> None:
    """No candidates and no nodes make an empty plan."""
    assert planned(round_of([], [], number=7)).number == 7
    assert who(planned(round_of([column("a")], []))) == {}


# ------------------------------------------------------------------------------------------ pinned


def test_pinned_jobs_keep_their_gpus() -> None:
    """A pinned job keeps exactly its GPUs, even with the worst rank or no column at all."""
    held = {**hold("a", "n0:0", pinned=True), **hold("b", "n1:0", pinned=True)}
    columns = [column("a", share=0.0, backfill=False), first("c"), first("d")]
    plan = planned(round_of(columns, nodes(3), held))
    assert who(plan).keys() >= {"a", "b"}
    assert who(plan)["a"] == ("n0:0",)
    assert who(plan)["b"] == ("n1:0",)
    assert len(plan.placements) == 3


def test_a_pinned_job_stays_on_a_node_that_gets_nothing_new() -> None:
    """A node that drains is not among the nodes; who is pinned there runs on, and nobody joins."""
    held = hold("a", "old:0", pinned=True)
    plan = planned(round_of([later("a"), first("a b"), first("c")], nodes(1), held))
    assert who(plan) == {"a": ("old:0",), "c": ("n0:0",)}


def test_the_partner_of_a_pinned_job_may_leave() -> None:
    """The pair is not chosen: the pinned one runs on alone."""
    pair = {**hold("a b", "n0:0")}
    held = {**pair, "a": hold("a b", "n0:0", pinned=True)["a"]}
    plan = planned(round_of([column("a b", share=0.0, backfill=False), column("c")], nodes(1), held))
    assert plan.placements == {Bundle(("a",), "v100", 1): ("n0:0",)}


def test_a_partner_may_join_a_pinned_job() -> None:
    """The pair is chosen before the pinned job alone is: the partner comes to its GPUs."""
    held = hold("a", "n1:0", pinned=True)
    plan = planned(round_of([later("a"), first("a b"), first("c")], nodes(2), held))
    assert who(plan) == {"a+b": ("n1:0",), "c": ("n0:0",)}


def test_nobody_joins_when_alone_comes_first() -> None:
    """The pinned job alone has the better rank than the pair: it stays alone."""
    plan = planned(round_of([first("a"), later("a b")], nodes(1), hold("a", "n0:0", pinned=True)))
    assert who(plan) == {"a": ("n0:0",)}


def test_two_pinned_jobs_stay_a_pair() -> None:
    """Pinned both, they stay together, whatever columns they have."""
    held = hold("a b", "n0:0", pinned=True)
    assert who(planned(round_of([first("a"), first("b")], nodes(2), held))) == {"a+b": ("n0:0",)}


def test_a_partner_joins_only_with_what_it_needs() -> None:
    """The node of the pinned job has not the CPUs that the partner asks for: it stays alone."""
    held = hold("a", "n0:0", pinned=True)
    cluster = [node("n0", 1, cpus=4.0)]
    for cpus, expected in ((1.0, {"a+b"}), (2.0, {"a"})):
        needs = {"a": Need(cpus_per_gpu=3.0), "b": Need(cpus_per_gpu=cpus)}
        assert set(who(planned(round_of([first("a b")], cluster, held, needs=needs)))) == expected


# ------------------------------------------------------------------------------------- reservation


def kept_out(skipped: int, **facts: object) -> RoundInputs:
    """A gang of two is first, a pinned job has one of two GPUs, another job would take the other one."""
    columns = [
        first("gang", gpus=2, skipped=skipped),
        later("other"),
        column("pin", entitled_s=1, received_s=99),
    ]
    return round_of(columns, nodes(2), hold("pin", "n0:0", pinned=True), **facts)


def test_a_gang_that_is_kept_out_is_skipped() -> None:
    """It is its turn, but a pinned job behind it has the GPUs: it is told so, and others run."""
    plan = planned(kept_out(skipped=1))
    assert set(who(plan)) == {"pin", "other"}
    assert [bundle.jobs for bundle in plan.skipped] == [("gang",)]
    assert plan.reserved == {}


def test_gpus_are_held_back_for_a_gang_that_waited() -> None:
    """Skipped often enough, what is free is held back for it: nobody below takes it."""
    plan = planned(kept_out(skipped=2))
    assert set(who(plan)) == {"pin"}
    assert plan.reserved == {"v100": Bundle(("gang",), "v100", 2)}


def test_nobody_overtakes_a_gang_at_the_head_of_the_line() -> None:
    """However much the others are due meanwhile: what is held back stays so until the gang has it."""
    inputs = round_of(
        [first("gang", gpus=2, skipped=9), column("urgent"), later("other")],
        nodes(3),
        {**hold("pin", "n0:0", pinned=True), **hold("pin2", "n1:0", pinned=True)},
    )
    plan = planned(inputs)
    assert set(who(plan)) == {"pin", "pin2"}
    assert plan.reserved == {"v100": Bundle(("gang",), "v100", 2)}


def test_whoever_has_to_leave_a_node_has_no_claim_to_stay() -> None:
    """A job on a node that is drained competes as a newcomer; who runs elsewhere is not disturbed for its sake."""
    running = {**hold("leaving", "gone:0"), **hold("staying", "n0:0")}
    columns = [column(job, share=0.5, entitled_s=500, received_s=500) for job in ("leaving", "staying")]
    for order in (columns, columns[::-1]):
        plan = planned(round_of(order, nodes(1), running, stay_s=720.0))
        assert set(who(plan)) == {"staying"}


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
    """Who may be moved at the next boundary anyway may run until then; newcomers may not."""
    inputs = round_of(
        [first("gang", gpus=3, skipped=9), later("stays"), later("new")],
        nodes(3),
        {**hold("pin", "n0:0", pinned=True), **hold("stays", "n2:0")},
    )
    assert who(planned(inputs)) == {"pin": ("n0:0",), "stays": ("n2:0",)}


def test_a_gang_that_just_has_not_its_turn_is_not_skipped() -> None:
    """GPUs that better ranked columns take are no reason to hold any back."""
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
    """Four running jobs and four newcomers that come before them."""
    running = [column(f"r{i}", entitled_s=1000, received_s=1000 + i) for i in range(4)]
    columns = [*running, *(first(f"new{i}") for i in range(4))]
    held = {job: now for i in range(4) for job, now in hold(f"r{i}", f"n{i}:0").items()}
    return round_of(columns, nodes(4), held, preemptions_max=most)


@pytest.mark.parametrize(
    ("most", "stay"), [(None, ""), (4, ""), (2, "r0 r1"), (1, "r0 r1 r2"), (0, "r0 r1 r2 r3")]
)
def test_so_many_may_lose_their_gpus(most: int | None, stay: str) -> None:
    """Beyond the limit incumbents keep their GPUs, the best ranked ones first."""
    plan = planned(crowd(most))
    assert " ".join(sorted(job for job in who(plan) if job.startswith("r"))) == stay
    assert len(plan.placements) == 4


def test_what_cannot_go_on_does_not_count() -> None:
    """A job whose node is gone loses its GPUs whatever the limit."""
    held = {**hold("a", "gone:0"), **hold("b", "n0:0")}
    plan = planned(round_of([first("a"), later("b")], nodes(1), held, preemptions_max=0))
    assert who(plan) == {"b": ("n0:0",)}


def test_a_pair_counts_as_two() -> None:
    """Where one may lose its GPUs, a pair keeps them."""
    held = {**hold("a b", "n0:0"), **hold("c", "n1:0")}
    columns = [later("a b", received_s=1100), later("c"), first("d"), first("e")]
    plan = planned(round_of(columns, nodes(2), held, preemptions_max=1))
    assert "a+b" in who(plan)
    assert "c" not in who(plan)


def test_a_gang_gathers_gpus_under_the_limit() -> None:
    """With a reservation, GPUs of those who lose them stay free until there are enough."""
    held = {job: now for i in range(4) for job, now in hold(f"r{i}", f"n{i}:0").items()}
    columns = [first("gang", gpus=4, skipped=2), *(later(f"r{i}", received_s=1000 + i) for i in range(4))]
    plan = planned(round_of(columns, nodes(4), held, preemptions_max=1))
    assert set(who(plan)) == {"r0", "r1", "r2"}
    assert set(plan.reserved) == {"v100"}
