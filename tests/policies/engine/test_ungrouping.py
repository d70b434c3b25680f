"""Splitting answers to merged jobs: every member gets the same time and rate, and few pairs of jobs are used."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.audit import audit
from policies.engine.grouping import Grouping, group
from policies.errors import ProblemError
from policies.problem import ALONE, Allocation, Columns, Problem
from policies.registry import entry, resolve
from tests.support.problems import alone, by_hand, canonical, problems, random_problem, together
from tests.support.wording import Wording


def used_pairs(problem: Problem, answer: Allocation, grouped: Grouping) -> dict[tuple[int, int], set[tuple]]:
    """Return the pairs of jobs that have time, by the groups of their two jobs."""
    columns, by_groups = problem.columns, defaultdict(set)
    for k in np.flatnonzero(columns.is_pair & (answer.time_share > 0)):
        jobs = sorted((int(columns.first[k]), int(columns.second[k])))
        by_groups[tuple(sorted(grouped.group_of[jobs].tolist()))].add(tuple(jobs))
    return by_groups


def every_column(problem: Problem) -> Allocation:
    """A made-up answer in which every column of a problem has some time."""
    k = len(problem.columns)
    share = 1e-3 * (1.0 + np.arange(k))
    return Allocation("test", share, 1.0, problem.capacity, problem.jobs.weight, np.arange(k) % 2 == 0)


@given(problem=problems(jobs=st.integers(2, 14), kinds=st.integers(1, 3), pairs=st.just(True)))
@settings(max_examples=100)
def test_pairs_of_jobs_stay_few(problem: Problem) -> None:
    """Pair time of groups of n_c and n_d jobs is given to at most n_c + n_d - 1 pairs of jobs.

    Pair time within a group of n jobs is given to at most n pairs. No time is lost.
    """
    smaller, grouped = group(problem, ["steps_left"])
    answer = every_column(smaller)
    split = grouped(answer)
    for (c, d), pairs in used_pairs(problem, split, grouped).items():
        n_c, n_d = smaller.jobs.count[[c, d]]
        assert len(pairs) <= (n_c + n_d - 1 if c != d else n_c)
    assert split.time_share.sum() == pytest.approx(answer.time_share.sum())
    held = problem.occupancy @ split.time_share
    assert held == pytest.approx(smaller.occupancy @ answer.time_share)
    busy = (smaller.membership @ answer.time_share) / smaller.jobs.count
    assert problem.membership @ split.time_share == pytest.approx(busy[grouped.group_of])
    rate = (smaller.rates @ answer.time_share) / smaller.jobs.count
    assert problem.rates @ split.time_share == pytest.approx(rate[grouped.group_of])


@given(problem=problems(jobs=st.integers(2, 10), kinds=st.integers(1, 3), pairs=st.just(True)))
@settings(max_examples=60)
def test_backfill_is_the_same_for_all_members(problem: Problem) -> None:
    """A column may use idle GPUs if and only if its merged column may."""
    smaller, grouped = group(problem)
    answer = every_column(smaller)
    back = grouped(answer).backfill
    merged_backfill = {}
    for k in range(len(smaller.columns)):
        merged_backfill[_way_of(smaller, k, np.arange(len(smaller.jobs)))] = answer.backfill[k]
    for k in range(len(problem.columns)):
        assert back[k] == merged_backfill[_way_of(problem, k, grouped.group_of)]


def _way_of(problem: Problem, k: int, row: np.ndarray) -> tuple:
    c = problem.columns
    rows = [int(row[c.first[k]])] + ([int(row[c.second[k]])] if c.second[k] != ALONE else [])
    return (*sorted(rows), int(c.worker_type[k]), int(c.gpus[k]), c.label[k], float(c.cpus[k]))


def test_rows_that_stand_for_several_jobs_keep_all_their_time() -> None:
    """A caller may merge jobs itself: its row of three jobs keeps the time of three."""
    problem = by_hand(
        {"v100": 8},
        alone("a", "v100", 4.0),
        alone("b", "v100", 4.0),
        alone("c", "v100", 4.0),
        together(("a", "a"), "v100", (1.0, 1.0)),
        together(("a", "b"), "v100", (1.0, 1.0)),
        count=[3, 1, 1],
    )
    smaller, grouped = group(problem.restrict(np.arange(3), np.arange(3)))
    assert smaller.jobs.count.tolist() == [3, 2]
    answer = replace(every_column(smaller), time_share=np.array([3.0, 2.0]))
    assert grouped(answer).time_share.tolist() == [3.0, 1.0, 1.0]
    for spec in ("las", "max_throughput", "fifo", "isolated", "strategy_proof", "las+packing", "las+blind"):
        share = resolve(spec)(problem).time_share
        assert share == pytest.approx([3.0, 1.0, 1.0, 0.0, 0.0], abs=1e-5), spec


def alike_on_one_gpu(n: int) -> Problem:
    """n jobs that are alike, each of which runs well beside any other."""
    jobs = [f"j{m}" for m in range(n)]
    return by_hand(
        {"v100": 1},
        *(alone(job, "v100", 10.0) for job in jobs),
        *(together(pair, "v100", (8.0, 8.0)) for pair in combinations(jobs, 2)),
    )


def test_pairs_within_one_group_stand_in_a_circle() -> None:
    """Five jobs alike, two at a time: each is paired with two others, and has two fifths of the time."""
    problem = alike_on_one_gpu(5)
    smaller, grouped = group(problem)
    assert smaller.jobs.count.tolist() == [5]
    assert smaller.membership.toarray().tolist() == [[1.0, 2.0]]
    split = grouped(entry("las").function(smaller))
    pairs = used_pairs(problem, split, grouped)[0, 0]
    assert Counter(job for pair in pairs for job in pair) == dict.fromkeys(range(5), 2)
    assert problem.membership @ split.time_share == pytest.approx([0.4] * 5, abs=1e-6)


def test_a_group_of_two_is_one_pair() -> None:
    """In a group of two jobs, their only pair has all of the time of pairs."""
    problem = alike_on_one_gpu(2)
    smaller, grouped = group(problem)
    split = grouped(entry("las").function(smaller))
    assert split.time_share == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)


def test_pair_rates_between_kinds_only() -> None:
    """Pair rates may be given by kind, in the merged problem; `split` finds the jobs that share GPUs."""
    solo = canonical(random_problem(5, jobs=12, kinds=3, widths=(1,)))
    smaller, grouped = group(solo)
    # By kind and type: two jobs on a GPU run at 0.8 of their rates.
    slow = 0.8 * smaller.columns.first_rate.reshape(3, 3)
    both = [(c, d, j) for c in range(3) for d in range(c, 3) for j in range(3)]
    c, d, j = np.array(both).T
    paired = Columns(
        # The later kind first, because the order of a pair must not matter.
        first=np.append(smaller.columns.first, d),
        second=np.append(smaller.columns.second, c),
        worker_type=np.append(smaller.columns.worker_type, j),
        gpus=np.append(smaller.columns.gpus, np.ones(len(both), int)),
        first_rate=np.append(smaller.columns.first_rate, slow[d, j]),
        second_rate=np.append(smaller.columns.second_rate, slow[c, j]),
    )
    solved = replace(smaller, columns=paired)
    answer = entry("las").function(solved)
    problem, split = grouped.split(solved, answer)
    assert problem.jobs.ids == solo.jobs.ids
    assert audit(problem, split) == []
    used = used_pairs(problem, split, grouped)
    assert used
    for (a, b), jobs in used.items():
        assert len(jobs) <= (smaller.jobs.count[[a, b]].sum() - 1 if a != b else smaller.jobs.count[a])
    rate = (solved.rates @ answer.time_share) / smaller.jobs.count
    assert problem.rates @ split.time_share == pytest.approx(rate[grouped.group_of], abs=1e-6)


def test_split_refuses_other_rows(wording: Wording) -> None:
    """An answer to another problem is refused, and not spread over the wrong jobs."""
    _, grouped = group(random_problem(5, jobs=12, kinds=3))
    with pytest.raises(ProblemError, match="rows") as refused:
        grouped.split(random_problem(5, jobs=2), every_column(random_problem(5, jobs=2)))
    wording(refused.value)
