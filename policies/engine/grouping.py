"""Exact merging of interchangeable jobs, and splitting an answer back.

Two jobs are interchangeable when the policy cannot tell them apart: same ways to run at the same rates,
same width and weight, same pair rates with every other job, and the same of whatever else the policy
reads. Feasible sets are convex and symmetric in such jobs, so the average of an optimum over the group is
an optimum: one row per group with a `count` loses nothing.

Splitting gives every member the same time. Singles are divided evenly. A pair share between two groups is
walked from corner to corner (members of one laid end to end beside members of the other), which needs at
most n_c + n_d - 1 pairs of jobs; within one group the members stand in a circle, each paired with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.engine.checks import derived
from policies.errors import ProblemError
from policies.problem import ALONE, Allocation, Floats, Ints, Problem

Words = np.ndarray  # of uint64: hashes
EXACT_DEADLINES = 50
NEGLIGIBLE = 1e-9


def _tenants(problem: Problem) -> list[np.ndarray]:
    names = {name: i for i, name in enumerate(sorted(set(problem.jobs.tenant)))}
    code = np.fromiter((names[name] for name in problem.jobs.tenant), np.int64, len(problem.jobs))
    in_order = {tenant.name for tenant in problem.tenants if tenant.policy == "fifo"}
    if not in_order:
        return [code]
    queued = np.fromiter((name in in_order for name in problem.jobs.tenant), bool, len(code))
    return [code, np.where(queued, np.arange(1, len(code) + 1), 0)]


def _deadlines(problem: Problem) -> list[np.ndarray]:
    due = np.isfinite(problem.jobs.deadline_s)
    facts = [np.where(due, problem.jobs.deadline_s, np.inf), np.where(due, problem.jobs.steps_left, np.inf)]
    if problem.jobs.count[due].sum() <= EXACT_DEADLINES:  # which of them to keep is then decided job by job
        facts.append(np.where(due, np.arange(1, len(due) + 1), 0))
    return facts


# What a policy may say that it reads, beyond rates, width and weight, which all of them read.
FACTS: dict[str, Callable[[Problem], list[np.ndarray]]] = {
    "id": lambda p: [np.arange(len(p.jobs))],
    "steps_left": lambda p: [p.jobs.steps_left],
    "waited_s": lambda p: [p.jobs.waited_s],
    "isolated_s": lambda p: [p.jobs.isolated_s],
    "deadline_s": _deadlines,
    "tenant": _tenants,
}


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """How the rows of `grouped` came from those of `problem`, and the way back."""

    problem: Problem
    grouped: Problem
    group_of: Ints  # [n] row of each job's group
    solo: Ints  # columns of the problem that run one job
    solo_source: Ints  # and the grouped column of each

    def __call__(self, allocation: Allocation) -> Allocation:
        """The same answer for every job: on the problem's own columns."""
        if self.grouped is self.problem:  # nobody was merged
            return allocation
        shares = np.zeros(len(self.problem.columns))
        shares[self.solo] = self._solo_shares(allocation)
        backfill = np.zeros(len(shares), dtype=bool)
        backfill[self.solo] = allocation.backfill[self.solo_source]
        if self.grouped.any_pairs:
            backfill |= self._pair_backfill(allocation)
            a, b, source, share = self._pair_shares(self.grouped, allocation.time_share)
            np.add.at(shares, self._pair_column(a, b, self.grouped.way[source]), share)
        return replace(
            allocation,
            time_share=shares,
            backfill=backfill,
            isolated_rate=allocation.isolated_rate[self.group_of],
        )

    def split(self, solved: Problem, allocation: Allocation) -> tuple[Problem, Allocation]:
        """For pairs that are known between groups only (`solved` = the grouped problem with such columns added).

        Returns a problem of all the jobs with the columns that the answer uses, and the answer on it.
        """
        if len(solved.jobs) != len(self.grouped.jobs):
            raise ProblemError("split: the solved problem does not have the rows of the grouped one")
        own = len(self.grouped.columns)
        alone = replace(
            allocation, time_share=allocation.time_share[:own], backfill=allocation.backfill[:own]
        )
        base = self(alone)
        a, b, source, share = self._pair_shares(solved, allocation.time_share)
        mine, columns = self.problem.columns, solved.columns
        label = mine.label + tuple(columns.label[k] for k in source.tolist())
        joined = derived(
            mine,
            first=np.concatenate([mine.first, a]),
            second=np.concatenate([mine.second, b]),
            worker_type=np.concatenate([mine.worker_type, columns.worker_type[source]]),
            gpus=np.concatenate([mine.gpus, columns.gpus[source]]),
            first_rate=np.concatenate([mine.first_rate, columns.first_rate[source]]),
            second_rate=np.concatenate([mine.second_rate, columns.second_rate[source]]),
            label=label,
        )
        answer = replace(
            base,
            time_share=np.concatenate([base.time_share, share]),
            backfill=np.concatenate([base.backfill, allocation.backfill[source]]),
        )
        return derived(self.problem, columns=joined), answer

    def _solo_shares(self, allocation: Allocation) -> Floats:
        row = self.problem.columns.first[self.solo]
        part = self.problem.jobs.count[row] / self.grouped.jobs.count[self.group_of[row]]
        return np.asarray(allocation.time_share[self.solo_source] * part)

    def _members(self) -> list[Ints]:
        order = np.argsort(self.group_of, kind="stable")
        ends = np.cumsum(np.bincount(self.group_of, minlength=len(self.grouped.jobs))).tolist()
        return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _pair_shares(self, solved: Problem, time_share: Floats) -> tuple[Ints, Ints, Ints, Floats]:
        """Job-level pairs: first job, second job, the grouped column it comes from, its share."""
        columns, members = solved.columns, self._members()
        least = NEGLIGIBLE * np.minimum(
            solved.jobs.count[columns.first], solved.jobs.count[np.maximum(columns.second, columns.first)]
        )
        used = np.flatnonzero(columns.is_pair & (time_share > least))
        parts: list[tuple[Ints, Ints, Ints, Floats]] = []
        for k in used.tolist():
            c, d = int(columns.first[k]), int(columns.second[k])
            a, b, part = _circle(members[c]) if c == d else _corner_walk(members[c], members[d])
            parts.append((a, b, np.full(len(a), k), part * time_share[k]))
        if not parts:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none, np.zeros(0)
        a, b, source, share = (np.concatenate(column) for column in zip(*parts, strict=True))
        return a, b, source, share

    def _pair_column(self, a: Ints, b: Ints, way: Ints) -> Ints:
        """The problem's own column for each pair of jobs and way (grouping keeps the ways, so their numbers agree)."""
        pairs = np.flatnonzero(self.problem.columns.is_pair)
        n, ways = len(self.problem.jobs), _ways(self.problem)
        columns = self.problem.columns
        key = _pair_key(columns.first[pairs], columns.second[pairs], self.problem.way[pairs], n, ways)
        order = np.argsort(key)
        return pairs[order[np.searchsorted(key[order], _pair_key(a, b, way, n, ways))]]

    def _pair_backfill(self, allocation: Allocation) -> np.ndarray:
        n, ways = len(self.problem.jobs), _ways(self.problem)
        blocks, pairs = (
            np.flatnonzero(self.grouped.columns.is_pair),
            np.flatnonzero(self.problem.columns.is_pair),
        )
        mine, theirs = self.problem.columns, self.grouped.columns
        key = _pair_key(theirs.first[blocks], theirs.second[blocks], self.grouped.way[blocks], n, ways)
        order = np.argsort(key)
        c, d = self.group_of[mine.first[pairs]], self.group_of[mine.second[pairs]]
        block = order[np.searchsorted(key[order], _pair_key(c, d, self.problem.way[pairs], n, ways))]
        out = np.zeros(len(mine), dtype=bool)
        out[pairs] = allocation.backfill[blocks[block]]
        return out


def group(problem: Problem, keys: Sequence[str] = (), apart: Ints | None = None) -> tuple[Problem, Grouping]:
    """One row per group of jobs that a policy which reads `keys` cannot tell apart. Exact.

    Jobs with different numbers in `apart` stay apart: for callers who know more of them than the problem says.
    """
    unknown = [key for key in keys if key not in FACTS]
    if unknown:
        raise ProblemError(f"group: unknown key '{unknown[0]}', must be one of {', '.join(FACTS)}")
    n = len(problem.jobs)
    facts: list[np.ndarray] = [problem.jobs.gpus, problem.jobs.weight]
    if apart is not None:
        facts.append(apart)
    for key in keys:
        facts += FACTS[key](problem)
    many = problem.jobs.count > 1  # a row that is a group already stays as it is
    if many.any():
        facts.append(np.where(many, np.arange(1, n + 1), 0))
    colour = _colours(problem, facts)
    if problem.any_pairs and n and colour.max() + 1 < n:
        colour = _renumber(_by_pairs(problem, colour))
    return _merged(problem, colour)


def _colours(problem: Problem, facts: list[np.ndarray]) -> Ints:
    """Jobs of one colour have equal facts and equal solo columns; numbered by the first job that has it."""
    n, columns = len(problem.jobs), problem.columns
    solo = np.flatnonzero(~columns.is_pair) if problem.any_pairs else np.arange(len(columns))
    if not problem.in_order:
        solo = solo[np.lexsort((problem.way[solo], columns.first[solo]))]
    # What is known of a job as bytes: the same bytes, the same colour.
    told = np.column_stack([_bits(fact) for fact in facts])
    ways = np.column_stack([_bits(problem.way[solo]), _bits(columns.first_rate[solo])])
    told_bytes, ways_bytes, width = told.tobytes(), ways.tobytes(), told.itemsize * told.shape[1]
    ends = (np.cumsum(np.bincount(columns.first[solo], minlength=n)) * ways.itemsize * 2).tolist()
    colour: dict[tuple[bytes, bytes], int] = {}
    out, start = [], 0
    for row, end in enumerate(ends):
        known = (told_bytes[row * width : (row + 1) * width], ways_bytes[start:end])
        out.append(colour.setdefault(known, len(colour)))
        start = end
    return np.array(out, np.int64)


def _by_pairs(problem: Problem, colour: Ints) -> Ints:
    """Split colours until jobs of one colour have the same pair rates with every job of every other."""
    columns, pairs = problem.columns, np.flatnonzero(problem.columns.is_pair)
    a, b, way = columns.first[pairs], columns.second[pairs], _bits(problem.way[pairs])
    ra, rb = _bits(columns.first_rate[pairs]), _bits(columns.second_rate[pairs])
    while True:
        word = np.zeros(len(colour), dtype=np.uint64)
        for mine, other, r_mine, r_other in ((a, b, ra, rb), (b, a, rb, ra)):
            sight = _hash(_hash(_hash(_bits(colour[other]), 1) ^ way, 2) ^ r_mine, 3)
            np.add.at(word, mine, _hash(sight ^ _hash(r_other, 4), 5))
        # Refined, never replaced: a hash that collides can only leave together what already was, and this ends.
        finer = np.unique(np.stack([colour, word.view(np.int64)]), axis=1, return_inverse=True)[1].ravel()
        settled = finer.max() == colour.max()
        colour = finer.astype(np.int64)
        if settled:
            break
    while True:  # every block of pairs must be complete and even; jobs of those that are not stay single
        key = _pair_key(colour[a], colour[b], problem.way[pairs], len(colour), _ways(problem))
        low, high = np.minimum(colour[a], colour[b]), np.maximum(colour[a], colour[b])
        turned = colour[a] > colour[b]
        r_low, r_high = np.where(turned, rb, ra), np.where(turned, ra, rb)
        _, leader, block, found = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        size = np.bincount(colour)
        full = np.where(low == high, size[low] * (size[low] - 1) // 2, size[low] * size[high])
        bad = found[block] != full
        bad |= (r_low != r_low[leader[block]]) | (r_high != r_high[leader[block]])
        bad |= (low == high) & (r_low != r_high)
        bad &= (size[low] > 1) | (size[high] > 1)
        if not bad.any():
            return colour
        loose = np.isin(colour, np.unique(np.concatenate([low[bad], high[bad]])))
        colour = _renumber(np.where(loose, len(colour) + np.arange(len(colour)), colour))


def _merged(problem: Problem, colour: Ints) -> tuple[Problem, Grouping]:
    n, columns = len(problem.jobs), problem.columns
    groups = int(colour.max()) + 1 if n else 0
    leader = np.empty(groups, dtype=np.int64)
    leader[colour[::-1]] = np.arange(n)[::-1]  # the last one written stays: the first member
    solo = np.flatnonzero(~columns.is_pair) if problem.any_pairs else np.arange(len(columns))
    if groups == n:
        return problem, Grouping(problem, problem, np.arange(n), solo, solo)
    led = solo[leader[colour[columns.first[solo]]] == columns.first[solo]]
    pairs = np.flatnonzero(columns.is_pair)
    if pairs.size:
        key = _pair_key(
            colour[columns.first[pairs]], colour[columns.second[pairs]], problem.way[pairs], n, _ways(problem)
        )
        pairs = pairs[np.unique(key, return_index=True)[1]]
    taken = columns.take(np.concatenate([led, pairs]))
    second = np.where(taken.is_pair, colour[taken.second], ALONE) if pairs.size else taken.second
    merged = derived(taken, first=colour[taken.first], second=second)
    count = np.bincount(colour, weights=problem.jobs.count, minlength=groups).astype(np.int64)
    jobs = derived(problem.jobs.take(leader), count=count)
    grouped = derived(problem, jobs=jobs, columns=merged, merged_from=(problem.jobs.ids, colour))
    key = colour[columns.first] * _ways(problem) + problem.way
    order = np.argsort(key[led])
    source = order[np.searchsorted(key[led[order]], key[solo])]
    return grouped, Grouping(problem, grouped, colour, solo, source)


def _pair_key(a: Ints, b: Ints, way: Ints, n: int, ways: int) -> Ints:
    """Which two rows (whichever comes first), run in which way, as one number."""
    return np.asarray((np.minimum(a, b) * np.int64(n) + np.maximum(a, b)) * np.int64(ways) + way)


def _ways(problem: Problem) -> int:
    return int(problem.way.max(initial=0)) + 1


def _renumber(colour: Ints) -> Ints:
    """Colours numbered by the first job that has them, so that grouping keeps the order of the jobs."""
    _, leader, inverse = np.unique(colour, return_index=True, return_inverse=True)
    rank = np.empty(len(leader), dtype=np.int64)
    rank[np.argsort(leader)] = np.arange(len(leader))
    return rank[inverse]


def _corner_walk(c: Ints, d: Ints) -> tuple[Ints, Ints, Floats]:
    """Members of both groups laid end to end along a line of length 1; whoever lies side by side is a pair."""
    n, m = len(c), len(d)
    cuts = np.unique(np.concatenate([np.arange(n + 1) * m, np.arange(m + 1) * n]))  # in units of 1 / (n m)
    return c[cuts[:-1] // m], d[cuts[:-1] // n], np.diff(cuts) / (n * m)


def _circle(c: Ints) -> tuple[Ints, Ints, Floats]:
    """Each member paired with the next, the last with the first."""
    n = len(c)
    if n == 2:
        return c[:1], c[1:], np.ones(1)
    return c, np.roll(c, -1), np.full(n, 1.0 / n)


def _bits(values: np.ndarray) -> Words:
    """The 64 bits of each number; 0.0 and -0.0 alike."""
    if values.dtype == np.float64:
        return np.asarray((values + 0.0).view(np.uint64))
    return values.astype(np.uint64)


def _hash(word: Words, salt: int) -> Words:
    """A 64-bit finaliser (xor, shift, multiply): every bit of the input moves every bit of the output."""
    word = word + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))
