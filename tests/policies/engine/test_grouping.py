"""Merging interchangeable jobs loses nothing under any policy, and splitting the answer treats members alike.

Jobs are interchangeable if swapping any two members of a group leaves the table of columns unchanged.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.audit import audit
from policies.engine import grouping
from policies.engine.grouping import Grouping, group
from policies.errors import ProblemError
from policies.problem import ALONE, Allocation, Problem
from policies.registry import Entry, entry, names
from tests.support.problems import alone, by_hand, canonical, problems, random_problem, shuffled, together
from tests.support.wording import Wording

# Conic solvers are exact to about 1e-8 of the scale; the search in `ftf` and the levels of water filling add to that.
TOLERANCE = 1e-5
FACTS = ("weight", "tenant", "steps_left", "waited_s", "isolated_s", "deadline_s")
KINDS = {"kinds": st.integers(1, 4), "widths": st.just((1,))}


def groups(problem: Problem, grouped: Grouping) -> list[list[int]]:
    """The rows of each group."""
    members = defaultdict(list)
    for row, number in enumerate(grouped.group_of.tolist()):
        members[number].append(row)
    return list(members.values())


def ways(problem: Problem) -> Counter:
    """The table of columns as a multiset that depends on no order; a pair is the same either way round."""
    c = problem.columns
    bag = Counter()
    for first, second, *way in zip(c.first, c.second, c.worker_type, c.gpus, c.label, c.cpus, strict=True):
        at = sum(bag.values())
        one_job, other_job = (int(first), float(c.first_rate[at])), (int(second), float(c.second_rate[at]))
        bag[(*sorted([one_job, other_job]), *map(str, way))] += 1
    return bag


def swap(problem: Problem, a: int, b: int) -> Problem:
    """The problem with two jobs in each other's place."""
    place = np.arange(len(problem.jobs) + 1)
    place[[a, b]] = [b, a]
    place[ALONE] = ALONE
    c = problem.columns
    return replace(problem, columns=replace(c, first=place[c.first], second=place[c.second]))


def assert_interchangeable(problem: Problem, grouped: Grouping, keys: tuple[str, ...]) -> None:
    """Check that no policy that reads these facts can distinguish the members of a group."""
    before = ways(problem)
    for members in groups(problem, grouped):
        for a, b in pairwise(members):
            assert ways(swap(problem, a, b)) == before
            for fact in ("gpus", "weight", *(key for key in keys if key in FACTS)):
                assert getattr(problem.jobs, fact)[a] == getattr(problem.jobs, fact)[b]


# --------------------------------------------------------------------------------- exact, for every policy


def both_answers(policy_entry: Entry, problem: Problem) -> tuple[Allocation, Grouping, Allocation]:
    """Return a policy's answers to the problem itself, and to the merged one."""
    smaller, grouped = group(problem, policy_entry.reads)
    return policy_entry.function(problem), grouped, policy_entry.function(smaller)


@pytest.mark.parametrize("name", names())
@settings(max_examples=60)
@given(problem=problems(**KINDS).map(canonical))
# An example in which all jobs reach their best rates.
@example(problem=canonical(random_problem(0, jobs=3, kinds=2, widths=(1,), pairs=True)))
def test_merging_costs_a_policy_nothing(name: str, problem: Problem) -> None:
    """Merged by the facts that the policy reads: equal value, a feasible answer, the same rate for each member."""
    if not len(problem.jobs):
        return
    policy_entry = entry(name)
    plain, grouped, merged = both_answers(policy_entry, problem)
    assert_interchangeable(problem, grouped, policy_entry.reads)
    split = grouped(merged)
    assert split.value == pytest.approx(plain.value, rel=TOLERANCE, abs=TOLERANCE)
    assert split.price == pytest.approx(merged.price, nan_ok=True)
    assert split.isolated_rate == pytest.approx(plain.isolated_rate, rel=1e-12)
    assert audit(problem, plain) == []
    assert audit(grouped.grouped, merged) == []
    assert audit(problem, split) == []
    rate = problem.rates @ split.time_share
    per_member = (grouped.grouped.rates @ merged.time_share) / grouped.grouped.jobs.count
    scale = problem.rates.largest()
    assert rate / scale == pytest.approx(per_member[grouped.group_of] / scale, abs=1e-7)


@pytest.mark.parametrize("name", [name for name in names() if "id" not in entry(name).reads])
def test_the_facts_a_policy_reads_leave_jobs_to_merge(name: str) -> None:
    """The property above does not merely hold for groups of one: twelve jobs of three kinds are three rows."""
    problem = canonical(random_problem(11, jobs=12, kinds=3, widths=(1,), pairs=True, weights=True))
    policy_entry = entry(name)
    plain, grouped, merged = both_answers(policy_entry, problem)
    assert len(grouped.grouped.jobs) == 3
    assert grouped.grouped.jobs.count.sum() == 12
    assert grouped(merged).value == pytest.approx(plain.value, rel=TOLERANCE)
    assert audit(problem, grouped(merged)) == []


@pytest.mark.parametrize("key", FACTS)
def test_a_fact_that_is_read_keeps_jobs_apart(key: str) -> None:
    """Jobs that differ in a fact are merged unless the policy reads it (weight is always read)."""
    other = {"tenant": ["a", "b"], "deadline_s": [60.0, np.inf]}.get(key, [1.0, 2.0])
    problem = by_hand({"v100": 1}, alone("a", "v100", 4.0), alone("b", "v100", 4.0), **{key: other})
    assert len(group(problem, [key] if key != "weight" else [])[0].jobs) == 2
    assert len(group(problem)[0].jobs) == (2 if key == "weight" else 1)


def test_every_job_has_an_id_of_its_own() -> None:
    """For a policy that reads ids, and in a fifo tenant, every job has its own row."""
    same = [alone(job, "v100", 4.0) for job in "abc"]
    assert len(group(by_hand({"v100": 1}, *same), ["id"])[0].jobs) == 3
    shop = random_problem(3, jobs=12, kinds=1, tenants=True)
    queue = replace(shop, jobs=replace(shop.jobs, tenant=("shop",) * 6 + ("lab/vision",) * 6))
    assert sorted(group(queue, ["tenant"])[0].jobs.count.tolist()) == [1] * 6 + [6]


def test_a_few_deadlines_are_decided_job_by_job() -> None:
    """Up to 50 jobs with deadlines stay apart for an exact choice; more than 50 are merged."""
    for jobs, rows in ((50, 50), (51, 1)):
        problem = by_hand(
            {"v100": 1},
            *(alone(f"j{m}", "v100", 4.0) for m in range(jobs)),
            steps_left=100.0,
            deadline_s=60.0,
        )
        assert len(group(problem, ["deadline_s"])[0].jobs) == rows


def test_steps_do_not_matter_without_a_deadline() -> None:
    """For a policy that reads steps only for deadlines, jobs without one are merged, whatever their steps."""
    same = [alone(job, "v100", 4.0) for job in "abc"]
    problem = by_hand({"v100": 1}, *same, steps_left=[5.0, 6.0, 7.0], deadline_s=[np.inf, np.inf, 9.0])
    assert group(problem, ["deadline_s"])[0].jobs.count.tolist() == [2, 1]


def test_an_unknown_key_is_refused(wording: Wording) -> None:
    """A typing error in `reads` must not silently merge jobs that should stay apart."""
    with pytest.raises(ProblemError, match=r"'steps'.* id, steps_left, .*tenant") as refused:
        group(random_problem(1), ["steps"])
    wording(refused.value)


# ------------------------------------------------------------------------------------------ what is merged


def test_jobs_are_not_merged_if_only_one_has_pair_rates() -> None:
    """Two jobs that are equally fast alone are not alike if only one of them has pair rates with a third job."""
    solo = [alone(job, "v100", 10.0) for job in "xyz"]
    problem = by_hand({"v100": 1}, *solo, together(("x", "y"), "v100", (8.0, 8.0)))
    smaller, grouped = group(problem)
    assert_interchangeable(problem, grouped, ())
    assert len(smaller.jobs) > 1
    assert grouped.group_of[2] not in grouped.group_of[:2]


def test_pairs_that_go_round_in_a_ring_are_not_a_block() -> None:
    """Four jobs, each with two partners, look alike one by one; but swapping two of them changes the table."""
    solo = [alone(job, "v100", 10.0) for job in "abcd"]
    ring = [together(pair, "v100", (8.0, 8.0)) for pair in ("ab", "bc", "cd", "da")]
    problem = by_hand({"v100": 1}, *solo, *(way._replace(jobs=tuple(way.jobs)) for way in ring))
    _, grouped = group(problem)
    assert_interchangeable(problem, grouped, ())


def test_jobs_are_not_merged_if_their_pair_rates_differ() -> None:
    """Two jobs that are equally fast alone are not alike if, as a pair, one is slower than the other."""
    solo = [alone(job, "v100", 10.0) for job in "ab"]
    uneven = by_hand({"v100": 1}, *solo, together(("a", "b"), "v100", (8.0, 6.0)))
    assert len(group(uneven)[0].jobs) == 2
    even = by_hand({"v100": 1}, *solo, together(("a", "b"), "v100", (8.0, 8.0)))
    assert len(group(even)[0].jobs) == 1


def test_jobs_that_beat_each_other_in_a_round_are_not_alike() -> None:
    """In pairs a is faster than b, b than c, and c than a: all have the same rates, but no two can be swapped."""
    solo = [alone(job, "v100", 10.0) for job in "abc"]
    rounds = [together(pair, "v100", (8.0, 6.0)) for pair in (("a", "b"), ("b", "c"), ("c", "a"))]
    problem = by_hand({"v100": 1}, *solo, *rounds)
    assert_interchangeable(problem, group(problem)[1], ())


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_merging_does_not_depend_on_order(problem: Problem, seed: int) -> None:
    """The same jobs are merged whatever the order of the jobs, of the columns, and of the two jobs in a pair."""
    other = shuffled(problem, seed)

    def by_id(which: Problem) -> set[frozenset[str]]:
        merged = groups(which, group(which)[1])
        return {frozenset(which.jobs.ids[row] for row in rows) for rows in merged}

    assert by_id(problem) == by_id(other)


@given(problem=problems())
@settings(max_examples=100)
def test_merging_twice_is_merging_once(problem: Problem) -> None:
    """A merged problem has nothing left to merge: merging it again changes nothing."""
    once, _ = group(problem)
    twice, grouped = group(once)
    assert twice.jobs.ids == once.jobs.ids
    assert grouped.group_of.tolist() == list(range(len(once.jobs)))
    assert ways(twice) == ways(once)


@given(problem=problems(kinds=st.integers(1, 3), pairs=st.booleans()))
@settings(max_examples=60)
def test_all_of_a_kind_is_merged(problem: Problem) -> None:
    """Merging is complete: there are as many rows as kinds, or fewer if kinds happen to be equal."""
    assert len(group(problem)[0].jobs) <= 3


def test_nothing_to_merge_is_fine() -> None:
    """No jobs, jobs without columns, and jobs that are all different come back unchanged."""
    for problem in (by_hand({"v100": 1}), by_hand({"v100": 1}, ids=("a",)), random_problem(2, kinds=None)):
        smaller, grouped = group(problem)
        assert smaller.jobs.ids == problem.jobs.ids
        assert grouped.group_of.tolist() == list(range(len(problem.jobs)))


# --------------------------------------------------------------------- equal hashes alone never merge jobs


@pytest.mark.parametrize("bits", [0, 1, 3])
@given(problem=problems(kinds=st.integers(1, 4), pairs=st.booleans()))
@settings(max_examples=60)
def test_colliding_hashes_merge_nothing_that_differs(bits: int, problem: Problem) -> None:
    """With a hash of a few bits, whose values often collide, groups may be smaller, but never wrong."""
    good, calls = grouping._hash, 0

    def short(word: np.ndarray, salt: int) -> np.ndarray:
        nonlocal calls
        calls += 1
        assert calls < 5_000, "splitting groups by hashes that collide goes round in circles"
        return good(word, salt) % np.uint64(2**bits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_hash", short)
        smaller, grouped = group(problem)
    assert_interchangeable(problem, grouped, ())
    assert smaller.jobs.count.sum() == len(problem.jobs)
