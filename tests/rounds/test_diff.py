"""The changes that a plan makes for jobs that hold GPUs."""

from scheduler.model.lease import Bundle
from scheduler.rounds.diff import LeaseChanges, diff
from scheduler.rounds.inputs import RoundPlan
from tests.support.rounds import column, hold

A, B, AB = (column(jobs).bundle for jobs in ("a", "b", "a b"))


def test_each_job_ends_continues_or_starts() -> None:
    """Of four jobs one ends, one is kept, one is moved and one starts."""
    held = {**hold("gone", "n0:0"), **hold("a", "n1:0"), **hold("b", "n2:0")}
    new = column("new").bundle
    changes = diff(held, RoundPlan(1, {new: ("n0:0",), A: ("n1:0",), B: ("n3:0",)}))
    assert changes == LeaseChanges(
        ended=("b", "gone"),
        rebundled=(),
        granted=(("b", B, ("n3:0",)), ("new", new, ("n0:0",))),
    )


def test_the_survivor_of_a_pair_is_rebundled() -> None:
    """The partner ends, and the other job keeps its lease with another bundle."""
    changes = diff(hold("a b", "n0:0"), RoundPlan(1, {A: ("n0:0",)}))
    assert changes == LeaseChanges(ended=("b",), rebundled=(("a", A),), granted=())


def test_a_job_that_is_joined_is_rebundled() -> None:
    """The new partner gets a lease, and the running job another bundle."""
    changes = diff(hold("b", "n0:0"), RoundPlan(1, {AB: ("n0:0",)}))
    assert changes == LeaseChanges((), (("b", AB),), (("a", AB, ("n0:0",)),))


def test_another_label_is_a_new_start() -> None:
    """With another label on the same GPUs the processes have to be started again."""
    tp = Bundle(("a",), "v100", 2, "tp2")
    changes = diff(hold("a", "n0:0", "n0:1"), RoundPlan(1, {tp: ("n0:0", "n0:1")}))
    assert changes == LeaseChanges(("a",), (), (("a", tp, ("n0:0", "n0:1")),))


def test_the_order_is_that_of_ids() -> None:
    """Neither the order of the plan nor that of the leases held matters."""
    held = {**hold("a", "n0:0"), **hold("b", "n1:0"), **hold("c", "n2:0")}
    placements = {B: ("n1:0",), A: ("n0:0",)}
    assert diff(held, RoundPlan(1, placements)) == diff(
        dict(reversed(held.items())), RoundPlan(1, dict(reversed(placements.items())))
    )
    assert diff({}, RoundPlan(1, placements)).granted == (("a", A, ("n0:0",)), ("b", B, ("n1:0",)))
