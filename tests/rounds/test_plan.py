"""What a round plans, told by small examples."""

from scheduler.rounds.diff import LeaseChanges, diff
from scheduler.rounds.plan import plan_round
from tests.support.rounds import column, hold, nodes, round_of


def test_the_highest_priority_runs() -> None:
    """Of two columns for one GPU, the one runs that received less of its due."""
    columns = [
        column("ann", share=0.5, entitled_s=1800, received_s=1800),
        column("bob", share=0.5, entitled_s=1800, received_s=1700),
    ]
    plan = plan_round(round_of(columns, nodes(1)))
    assert plan.placements == {columns[1].bundle: ("n0:0",)}


def test_who_runs_on_stays() -> None:
    """A job that runs on keeps its GPU, whichever others are free."""
    held = hold("ann", "n2:0")
    plan = plan_round(round_of([column("ann"), column("bob")], nodes(4), held))
    assert plan.placements[column("ann").bundle] == ("n2:0",)
    assert diff(held, plan) == LeaseChanges((), ("ann",), (), (("bob", column("bob").bundle, ("n0:0",)),))
