"""The order of turns: each rule, one at a time."""

import pytest

from scheduler.rounds.lookup import Board
from scheduler.rounds.rank import changes, rank
from tests.support.rounds import ROUND_S, Column, column, hold, nodes, round_of


def order(columns: list[Column], held: dict | None = None, stay_s: float = 0.0) -> str:
    """Return the jobs in order of their turns."""
    inputs = round_of(columns, nodes(1), held, stay_s=stay_s)
    return " ".join("+".join(inputs.candidates.bundles[row].jobs) for row in rank(Board.of(inputs)))


def test_priority_is_entitled_by_received() -> None:
    """The job that received the smallest part of its due comes first, however large the due."""
    columns = [
        column("a", entitled_s=1000, received_s=1000),
        column("b", entitled_s=100, received_s=50),
        column("c", entitled_s=300, received_s=200),
    ]
    assert order(columns) == "b c a"


def test_a_job_that_received_nothing_is_first() -> None:
    """Jobs that received nothing come before any ratio, the larger claim first."""
    columns = [
        column("a", entitled_s=300, received_s=1),
        column("b", entitled_s=100),
        column("c", entitled_s=200),
    ]
    assert order(columns) == "c b a"


def test_ties_go_to_the_larger_debt() -> None:
    """Of equal ratios the job that is behind by more comes first."""
    columns = [
        column("a", entitled_s=200, received_s=100),
        column("b", entitled_s=300, received_s=150),
    ]
    assert order(columns) == "b a"


def test_the_hash_breaks_the_last_tie() -> None:
    """Columns that are alike in every other respect keep one order, whichever is listed first."""
    columns = [column("a"), column("b"), column("c")]
    assert order(columns) == order(columns[::-1])


def test_a_round_behind_comes_before_any_ratio() -> None:
    """Many small claims do not make a large one wait for more than a round or two."""
    large = column("large", share=0.9, entitled_s=10 * ROUND_S, received_s=8.5 * ROUND_S)
    small = [column(f"s{i}", share=0.001, entitled_s=0.36) for i in range(9)]
    assert order([*small, large]).startswith("large")


def test_the_furthest_behind_is_first() -> None:
    """Among jobs more than a round behind the distance counts, not the ratio."""
    columns = [
        column("ratio", share=0.1, entitled_s=2 * ROUND_S, received_s=0.5 * ROUND_S),
        column("distance", share=0.9, entitled_s=20 * ROUND_S, received_s=18 * ROUND_S),
    ]
    assert order(columns) == "distance ratio"


def test_dues_shrink_to_what_can_be_given() -> None:
    """If only half of the promised time exists, jobs with their half are not behind: the small share has its turn."""
    large = [
        column(f"large{i}", share=0.9, entitled_s=20 * ROUND_S, received_s=10 * ROUND_S) for i in range(3)
    ]
    small = column("small", share=0.01, entitled_s=0.3 * ROUND_S)
    assert order([*large, small]).startswith("small")


def test_a_job_is_late_once_it_waits_longer_than_turns_last() -> None:
    """If turns may leave others three rounds behind, two rounds are not late, and the ratio decides."""
    columns = [
        column("ratio", entitled_s=3 * ROUND_S, received_s=1 * ROUND_S),
        column("distance", share=0.9, entitled_s=20 * ROUND_S, received_s=17.5 * ROUND_S),
    ]
    assert order(columns) == "distance ratio"
    assert order(columns, stay_s=3 * ROUND_S) == "ratio distance"


@pytest.mark.parametrize(("ahead", "first"), [(-1.0, "a"), (1.3, "a"), (1.5, "b")])
def test_a_running_job_continues_until_it_is_ahead(ahead: float, first: str) -> None:
    """A turn ends when the job is as far ahead of its due as turns allow; until then no ratio counts."""
    columns = [
        column("a", share=0.5, entitled_s=10.5 * ROUND_S, received_s=(10 + ahead) * ROUND_S),
        column("b", share=0.5, entitled_s=10 * ROUND_S, received_s=9 * ROUND_S),
    ]
    assert (
        order(columns, hold("a", "n0:0"), stay_s=1.4 * ROUND_S) == f"{first} {'b' if first == 'a' else 'a'}"
    )


def test_a_late_job_ends_a_turn() -> None:
    """A job that is further behind than turns allow does not wait until the running job's turn is over."""
    columns = [
        column("a", share=0.5, entitled_s=10 * ROUND_S, received_s=10 * ROUND_S),
        column("b", share=0.5, entitled_s=10 * ROUND_S, received_s=8.5 * ROUND_S),
    ]
    assert order(columns, hold("a", "n0:0"), stay_s=1.4 * ROUND_S) == "b a"


def test_a_large_share_gives_way_to_small_ones() -> None:
    """A share of 98 % gets at most 0.6 rounds ahead, so it gives way when it is half as far ahead."""
    small = column("small", share=0.02, entitled_s=0.4 * ROUND_S, received_s=0.01)

    def first(ahead: float) -> str:
        large = column("large", share=0.98, entitled_s=25.98 * ROUND_S, received_s=(25 + ahead) * ROUND_S)
        return order([large, small], hold("large", "n0:0"), stay_s=1.4 * ROUND_S).split()[0]

    assert (first(0.25), first(0.35)) == ("large", "small")


def test_the_whole_time_is_never_too_much() -> None:
    """A job entitled to all of the time continues, even if idle GPUs put it ahead: no other is entitled to its GPU."""
    columns = [
        column("whole", share=1.0, entitled_s=10 * ROUND_S, received_s=11 * ROUND_S),
        column("other", share=0.5, entitled_s=0.5 * ROUND_S, received_s=0.01),
    ]
    assert order(columns, hold("whole", "n0:0"), stay_s=1.4 * ROUND_S) == "whole other"


def test_a_guess_comes_first() -> None:
    """A column with an unknown rate runs before others, so that its rate is measured."""
    columns = [column("known"), column("guess", entitled_s=1, received_s=999, explore=True)]
    assert order(columns) == "guess known"


def test_no_share_means_last_or_not_at_all() -> None:
    """Columns without a share come after all columns with one, or not at all if they may not be backfilled."""
    columns = [
        column("fills", share=0.0, entitled_s=9000, explore=True),
        column("never", share=0.0, backfill=False),
        column("due", entitled_s=1, received_s=999),
    ]
    assert order(columns) == "due fills"


def test_backfilled_gpus_stay_with_the_running_job() -> None:
    """If starting costs time, idle GPUs stay with the job that already runs on them."""
    held = hold("a", "n0:0")
    costly = [column(job, share=0.0, received_s=s, restart_s=30) for job, s in (("a", 900), ("b", 0))]
    free = [column(job, share=0.0, received_s=s) for job, s in (("a", 900), ("b", 0))]
    assert order(costly, held) == "a b"
    assert order(free, held) == "b a"


@pytest.mark.parametrize(("share", "first"), [(0.5, "a"), (1.0, "b")])
def test_a_restart_makes_a_column_worth_less(share: float, first: str) -> None:
    """A start costs restart / expected stay of the rate, and a column of share x stays 1 / (1 - x) rounds.

    With 36 s of 360 s and share ½ that is 5 %: a claim that is 3 % better is not worth a change. Starting a column
    that will never stop costs nothing.
    """
    columns = [
        column("a", share=0.5, entitled_s=1000, received_s=1000, restart_s=36),
        column("b", share=share, entitled_s=1030, received_s=1000, restart_s=36),
    ]
    assert order(columns, hold("a", "n0:0")).startswith(first)


def test_free_restarts_change_nothing() -> None:
    """If restarts cost nothing, the order does not depend on which jobs run."""
    columns = [
        column("a", share=0.5, entitled_s=1000, received_s=1000),
        column("b", share=0.5, entitled_s=1001, received_s=1000),
    ]
    assert order(columns, hold("a", "n0:0")) == order(columns) == "b a"


def test_a_pair_runs_only_when_both_do() -> None:
    """A pair of which one job has to start is a change; a job that its partner leaves is not."""
    held = {**hold("a b", "n0:0"), **hold("c", "n1:0")}
    facts = {"share": 0.5, "entitled_s": 1000, "received_s": 1000, "restart_s": 180}
    columns = [column(jobs, **facts) for jobs in ("a c", "b c", "c", "a", "a b")]
    assert set(order(columns, held).split()[:3]) == {"a", "a+b", "c"}


def test_a_pair_continues_as_a_pair() -> None:
    """One of the two alone is another column, whose turn comes by its ratio."""
    facts = {"share": 0.5, "entitled_s": 1000, "received_s": 1000}
    columns = [column("a", **facts | {"entitled_s": 1001}), column("a b", **facts)]
    assert order(columns, hold("a b", "n0:0"), stay_s=ROUND_S) == "a+b a"


def test_a_job_left_by_its_partner_does_not_start() -> None:
    """A running pair has lost its column: the column of its job alone starts nothing, but is not the running one."""
    inputs = round_of([column("a"), column("c")], nodes(1), hold("a b", "n0:0"))
    starts, runs = changes(Board.of(inputs))
    assert (starts.tolist(), runs.tolist()) == ([False, True], [False, False])


def test_nothing_to_rank() -> None:
    """Without candidates the order is empty."""
    assert order([]) == ""
