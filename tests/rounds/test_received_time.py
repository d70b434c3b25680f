"""Over many rounds the time that jobs receive follows their shares, and no job starves."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.settings import Settings
from scheduler.rounds.check import check_plan
from tests.support.rounds import Column, Rounds, column, hold, node, nodes

ROUNDS = 120


def shares_within(capacity: list[int], jobs: int, seed: int) -> np.ndarray:
    """Return random shares of jobs × worker types that use nearly all of the time and the GPUs."""
    shares = np.random.default_rng(seed).random((jobs, len(capacity)))
    shares *= np.random.default_rng(seed + 1).random(shares.shape) < 0.7
    for _ in range(100):
        shares /= np.maximum(shares.sum(axis=0) / np.array(capacity), 1e-9)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    shares /= np.maximum(shares.sum(axis=0) / np.array(capacity), 1.0)
    return np.floor(shares * 1e6) / 1e6


@settings(max_examples=25)
@given(
    capacity=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    jobs=st.integers(1, 25),
    seed=st.integers(0, 10_000),
    restart_s=st.sampled_from([0.0, 30.0]),
    stay_s=st.sampled_from([0.0, Settings().stay_s]),
)
def test_received_time_follows_the_allocation(
    capacity: list[int], jobs: int, seed: int, restart_s: float, stay_s: float
) -> None:
    """Single-GPU jobs without partners are never more than two rounds behind the time their shares entitle them to."""
    kinds = tuple(f"t{kind}" for kind in range(len(capacity)))
    shares = shares_within(capacity, jobs, seed)
    columns = [
        column(f"j{job:02}", kinds[kind], share=float(shares[job, kind]), restart_s=restart_s)
        for job, kind in zip(*np.nonzero(shares), strict=True)
    ]
    cluster = [
        node(f"{kinds[kind]}-{i}", 1, kind) for kind, count in enumerate(capacity) for i in range(count)
    ]
    rounds = Rounds(columns, cluster, worker_types=kinds, stay_s=stay_s)
    worst = 0.0
    for _ in range(ROUNDS):
        inputs, plan = rounds.play()
        assert check_plan(inputs, plan) == []
        worst = max(worst, rounds.behind_rounds.max(initial=0.0))
    assert worst <= 2.0


def test_many_small_shares_do_not_outvote_a_large_one() -> None:
    """If a hundred jobs have a thousandth of the time each, and one nine tenths, none is two rounds behind or ahead."""
    columns = [column("large", share=0.9), *(column(f"s{i:02}", share=0.001) for i in range(100))]
    rounds = Rounds(columns, nodes(1))
    gaps = []
    for _ in range(ROUNDS):
        rounds.play()
        gaps.append(np.abs(rounds.behind_rounds).max())
    assert max(gaps) <= 2.0


def test_with_too_few_gpus_all_get_the_same_part() -> None:
    """With four GPUs for shares of six, as after the loss of a node, jobs get about two thirds of their shares.

    A small share may get more, because a turn is a whole round; it must not starve.
    """
    shares = [1.0, 0.9, 0.9, 0.8, 0.5, 0.5, 0.4, 0.4, 0.3, 0.2, 0.1, 0.03, 0.03]
    rounds = Rounds([column(f"j{i:02}", share=share) for i, share in enumerate(shares)], nodes(4))
    received = np.zeros(len(shares))
    for _ in range(600):
        _, plan = rounds.play()
        received += [bundle in plan.placements for bundle in rounds.row_of]
    parts = received / 600 / np.array(shares)
    assert parts[:10].min() >= 0.55
    assert parts[:10].max() <= 0.85
    assert parts[10:].min() >= 0.4


def test_shares_that_fill_the_cluster_are_met_from_both_sides() -> None:
    """If shares use the whole cluster, no job gets more than two rounds too much, either."""
    columns = [column(f"j{i}", share=share) for i, share in enumerate([1.0, 0.75, 0.5, 0.5, 0.2, 0.05])]
    rounds = Rounds(columns, nodes(3))
    for _ in range(ROUNDS):
        rounds.play()
        assert np.abs(rounds.behind_rounds).max() <= 2.0


def test_a_full_share_is_never_interrupted() -> None:
    """A job that is entitled to all of the time runs all of the time, on the same GPU."""
    columns = [
        column("whole", share=1.0),
        column("a", share=0.5),
        column("b", share=0.5),
        column("c", share=0.0),
    ]
    rounds = Rounds(columns, nodes(2))
    places = {rounds.play()[1].placements[columns[0].bundle] for _ in range(ROUNDS)}
    assert len(places) == 1


@pytest.mark.parametrize(("share", "most"), [(0.5, 30), (0.9, 15), (0.98, 9)])
def test_turns_are_long(share: float, most: int) -> None:
    """Two jobs on one GPU get their time in long turns, and change less often than with turns of one round."""
    columns = [column("large", share=share), column("small", share=1.0 - share)]

    def changes(stay_s: float) -> int:
        rounds = Rounds(columns, nodes(1), stay_s=stay_s)
        runs = [next(iter(rounds.play()[1].placements)) for _ in range(ROUNDS)]
        return sum(before != after for before, after in pairwise(runs))

    assert 2 <= changes(Settings().stay_s) <= most
    assert changes(Settings().stay_s) < changes(0.0)


@pytest.mark.parametrize("share", [0.9, 0.97, 0.98, 0.995])
def test_long_turns_starve_no_job(share: float) -> None:
    """A small share beside a large one gets its part, though the large one never gets ahead by a full turn."""
    columns = [column("large", share=share), column("small", share=1.0 - share)]
    rounds = Rounds(columns, nodes(1), stay_s=Settings().stay_s)
    turns = sum(columns[1].bundle in rounds.play()[1].placements for _ in range(2000))
    assert 0.7 <= turns / 2000 / (1.0 - share) <= 3.0


def crowd(**facts: object) -> list[Column]:
    """Return a gang as wide as the cluster, and more single-GPU jobs than there are GPUs."""
    return [
        column("gang", gpus=4, share=0.2, **facts),
        *(column(f"j{i}", share=0.8 * 4 / 6) for i in range(6)),
    ]


def turns_of_the_gang(rounds: Rounds) -> int:
    """Count the rounds in which the gang ran."""
    ran = 0
    for _ in range(ROUNDS):
        inputs, plan = rounds.play()
        assert check_plan(inputs, plan) == []
        ran += inputs.candidates.bundles[0] in plan.placements
    return ran


def staggered(**facts: object) -> Rounds:
    """Return jobs that started in different rounds and stay for three, so that four GPUs are never free at once."""
    rounds = Rounds(crowd(), nodes(4), pinned_rounds=3, **facts)  # type: ignore[arg-type]
    for i in range(4):
        rounds.held |= hold(f"j{i}", f"n{i}:0", pinned=i < 3)
        rounds.ran[f"j{i}"] = i
    return rounds


def test_gangs_have_their_turn_beside_pinned_jobs() -> None:
    """With GPUs held back, a gang as wide as the cluster runs in spite of pinned jobs that never end together."""
    assert turns_of_the_gang(staggered()) >= 10


def test_without_reservations_the_gang_would_wait() -> None:
    """Without the reservation the gang has fewer turns, so the test above proves what the reservation does."""
    assert turns_of_the_gang(staggered(reserve_after=10_000)) < turns_of_the_gang(staggered())


@pytest.mark.parametrize("most", [1, 2])
def test_gangs_have_their_turn_under_a_limit_of_preemptions(most: int) -> None:
    """If few jobs may be preempted in a round, a gang gathers its GPUs over several rounds."""
    assert turns_of_the_gang(Rounds(crowd(), nodes(4), preemptions_max=most)) >= 10


def test_small_shares_of_gangs_have_their_turn() -> None:
    """A gang with a small share runs now and then, and no job starves for it."""
    columns = [column("gang", gpus=3, share=0.05), *(column(f"j{i}", share=0.95) for i in range(3))]
    rounds = Rounds(columns, nodes(3))
    ran = turns_of_the_gang(rounds)
    assert 3 <= ran <= 12
    assert rounds.behind_rounds.max() <= 2.0
