"""`gandiva`: which jobs are paired, for how long, and when a pair breaks."""

from itertools import combinations

import numpy as np
import pytest

from policies.problem import Problem
from policies.registry import resolve
from tests.support.problems import alone, by_hand, together


def jobs_that_share(n: int, rate: float, gpus: float, seed: int = 0, width: tuple[int, ...] = ()) -> Problem:
    """n jobs of 1 step/s alone, `rate` each in any pair of equal width."""
    names, widths = [f"j{i}" for i in range(n)], width or (1,) * n
    solo = [alone(job, "gpu", 1.0, g) for job, g in zip(names, widths, strict=True)]
    pairs = [
        together((names[a], names[b]), "gpu", (rate, rate), widths[a])
        for a, b in combinations(range(n), 2)
        if widths[a] == widths[b]
    ]
    return by_hand({"gpu": gpus}, *solo, *pairs, gpus=np.array(widths), seed=seed)


def pairs_of(problem: Problem) -> list[tuple[str, str]]:
    """The pairs that run."""
    share, columns, ids = resolve("gandiva")(problem).time_share, problem.columns, problem.jobs.ids
    used = np.flatnonzero((share > 0) & columns.is_pair)
    return [(ids[columns.first[k]], ids[columns.second[k]]) for k in used]


def test_enough_gpus_no_pairs() -> None:
    """Four jobs on four GPUs run alone, all the time."""
    problem = jobs_that_share(4, 0.9, 4)
    assert pairs_of(problem) == []
    assert resolve("gandiva")(problem).time_share[:4] == pytest.approx(1.0)


def test_over_subscribed_jobs_pair_up() -> None:
    """Four jobs on two GPUs: two pairs, each with one GPU; each job is in one of them."""
    problem = jobs_that_share(4, 0.9, 2)
    pairs = pairs_of(problem)
    assert sorted(job for pair in pairs for job in pair) == ["j0", "j1", "j2", "j3"]
    answer = resolve("gandiva")(problem)
    assert answer.time_share[answer.time_share > 0] == pytest.approx([1.0, 1.0])
    assert answer.value == pytest.approx(3.6)


def test_an_odd_job_stays_alone() -> None:
    """Three jobs on one GPU: a pair and a single, half of the time each."""
    problem = jobs_that_share(3, 0.9, 1)
    share = resolve("gandiva")(problem).time_share
    assert len(pairs_of(problem)) == 1
    assert share[share > 0] == pytest.approx([0.5, 0.5])


def test_a_pair_that_gets_less_than_taking_turns_breaks() -> None:
    """Because 0.4 + 0.4 < 1, pairs are broken, and every job runs alone for half of the time."""
    problem = jobs_that_share(4, 0.4, 2)
    assert pairs_of(problem) == []
    assert resolve("gandiva")(problem).time_share[:4] == pytest.approx(0.5)


def test_a_pair_hardly_better_than_taking_turns_stays() -> None:
    """Pairs are kept, because 0.51 + 0.51 > 1."""
    assert len(pairs_of(jobs_that_share(4, 0.51, 2))) == 2


def test_only_equal_widths_pair() -> None:
    """Two jobs of one GPU and two of two GPUs form no mixed pair; on three GPUs, the wide pair has 3/4 of the time."""
    problem = jobs_that_share(4, 0.9, 3, width=(1, 2, 1, 2))
    assert sorted(map(sorted, pairs_of(problem))) == [["j0", "j2"], ["j1", "j3"]]
    share = resolve("gandiva")(problem).time_share
    assert sorted(share[share > 0].tolist()) == pytest.approx([0.75, 1.0])


def test_pairs_without_a_known_rate_do_not_form() -> None:
    """Without pair rates all jobs run alone."""
    problem = Problem.from_rates([[1.0]] * 4, 1, [2])
    assert resolve("gandiva")(problem).time_share == pytest.approx(0.5)


def test_the_draw_belongs_to_the_seed() -> None:
    """The same seed draws the same pairs again; other seeds draw others."""
    drawn = [
        tuple(sorted(map(tuple, map(sorted, pairs_of(jobs_that_share(6, 0.9, 3, seed))))))
        for seed in range(8)
    ]
    assert drawn[0] == tuple(sorted(map(tuple, map(sorted, pairs_of(jobs_that_share(6, 0.9, 3, 0))))))
    assert len(set(drawn)) > 3
