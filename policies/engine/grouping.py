"""Exact merging of interchangeable jobs, and splitting an answer back.

Two jobs are interchangeable if the policy cannot tell them apart: they have the same ways to run at the same rates, the
same width, weight and quotas, the same pair rates with every other job, and the same other facts that the policy reads.
Feasible sets are convex and symmetric in such jobs, so averaging an optimum over the group gives an optimum: one row
per group with a `count` loses nothing.

Splitting gives every member the same time. The share of a column with one job is divided evenly. To divide the share of
a pair of groups, the members of each group are laid end to end along a line of its own. Both lines are equally long,
and members that lie opposite each other form pairs. Groups of n and m jobs give at most n + m - 1 pairs. Within one
group the members form a circle, each paired with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.engine.checks import derived
from policies.errors import ProblemError
from policies.problem import ALONE, Allocation, Floats, Ints, Problem

# Hashes, as an array of uint64.
Words = np.ndarray
# Up to this number of deadlines, a policy decides on each deadline separately, to keep the greatest possible number.
EXACT_DEADLINES = 50
# The share of a pair of groups is dropped if it is at most this number times the size of the smaller group.
NEGLIGIBLE = 1e-9


def _tenants(problem: Problem) -> list[np.ndarray]:
    names = {name: i for i, name in enumerate(sorted(set(problem.jobs.tenant)))}
    code = np.fromiter((names[name] for name in problem.jobs.tenant), np.int64, len(problem.jobs))
    queues = {tenant.name for tenant in problem.tenants if tenant.policy == "fifo"}
    if not queues:
        return [code]
    queued = np.fromiter((name in queues for name in problem.jobs.tenant), bool, len(code))
    # The jobs of a fifo tenant are not merged.
    return [code, np.where(queued, np.arange(1, len(code) + 1), 0)]


def _deadlines(problem: Problem) -> list[np.ndarray]:
    has_deadline = np.isfinite(problem.jobs.deadline_s)
    facts = [
        np.where(has_deadline, values, np.inf)
        for values in (problem.jobs.deadline_s, problem.jobs.steps_left)
    ]
    if problem.jobs.count[has_deadline].sum() <= EXACT_DEADLINES:
        # Then each deadline is kept or missed separately, so these jobs are not merged.
        facts.append(np.where(has_deadline, np.arange(1, len(has_deadline) + 1), 0))
    return facts


def _quotas(problem: Problem) -> list[np.ndarray]:
    """Return a number for each job, equal for jobs under the same quotas."""
    quotas, n = problem.quotas, len(problem.jobs)
    if not len(quotas):
        return []
    ordered = quotas.quota[np.lexsort((quotas.quota, quotas.job))]
    ends = np.cumsum(np.bincount(quotas.job, minlength=n)).tolist()
    numbers: dict[bytes, int] = {}
    sets = [ordered[start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False)]
    return [np.array([numbers.setdefault(own, len(numbers)) for own in sets], np.int64)]


# The facts that only some policies read. Every policy reads rates, width, weight and quotas.
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
    """The relation between the rows of `grouped` and the rows of `problem`.

    `group_of` [n] is the row of each job's group. `solo` are the columns of `problem` that run one job, and
    `solo_source` are the columns of `grouped` into which they were merged.
    """

    problem: Problem
    grouped: Problem
    group_of: Ints
    solo: Ints
    solo_source: Ints

    def __call__(self, allocation: Allocation) -> Allocation:
        """Return the answer for every job, in the columns of the original problem."""
        if self.grouped is self.problem:
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
        """Return the problem of all jobs with a column added for each pair of jobs in use, and the allocation for it.

        Use this if rates of pairs are given only between groups. `solved` is the grouped problem plus the columns of
        those pairs.
        """
        if len(solved.jobs) != len(self.grouped.jobs):
            raise ProblemError("split: the solved problem does not have the rows of the grouped problem")
        own = len(self.grouped.columns)
        alone = replace(
            allocation, time_share=allocation.time_share[:own], backfill=allocation.backfill[:own]
        )
        base = self(alone)
        a, b, source, share = self._pair_shares(solved, allocation.time_share)
        own_columns, columns = self.problem.columns, solved.columns
        label = own_columns.label + tuple(columns.label[k] for k in source.tolist())
        joined = derived(
            own_columns,
            first=np.concatenate([own_columns.first, a]),
            second=np.concatenate([own_columns.second, b]),
            worker_type=np.concatenate([own_columns.worker_type, columns.worker_type[source]]),
            gpus=np.concatenate([own_columns.gpus, columns.gpus[source]]),
            first_rate=np.concatenate([own_columns.first_rate, columns.first_rate[source]]),
            second_rate=np.concatenate([own_columns.second_rate, columns.second_rate[source]]),
            label=label,
            cpus=np.concatenate([own_columns.cpus, columns.cpus[source]]),
        )
        answer = replace(
            base,
            time_share=np.concatenate([base.time_share, share]),
            backfill=np.concatenate([base.backfill, allocation.backfill[source]]),
        )
        return derived(self.problem, columns=joined), answer

    def _solo_shares(self, allocation: Allocation) -> Floats:
        row = self.problem.columns.first[self.solo]
        fraction = self.problem.jobs.count[row] / self.grouped.jobs.count[self.group_of[row]]
        return np.asarray(allocation.time_share[self.solo_source] * fraction)

    def _members(self) -> list[Ints]:
        order = np.argsort(self.group_of, kind="stable")
        ends = np.cumsum(np.bincount(self.group_of, minlength=len(self.grouped.jobs))).tolist()
        return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _pair_shares(self, solved: Problem, time_share: Floats) -> tuple[Ints, Ints, Ints, Floats]:
        """Return the pairs of jobs in use, as arrays: first job, second job, grouped column, share."""
        columns, members = solved.columns, self._members()
        least = NEGLIGIBLE * np.minimum(
            solved.jobs.count[columns.first], solved.jobs.count[np.maximum(columns.second, columns.first)]
        )
        used = np.flatnonzero(columns.is_pair & (time_share > least))
        parts: list[tuple[Ints, Ints, Ints, Floats]] = []
        for k in used.tolist():
            c, d = int(columns.first[k]), int(columns.second[k])
            a, b, part = _circle(members[c]) if c == d else _opposite_pairs(members[c], members[d])
            parts.append((a, b, np.full(len(a), k), part * time_share[k]))
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty, np.zeros(0)
        a, b, source, share = (np.concatenate(column) for column in zip(*parts, strict=True))
        return a, b, source, share

    def _pair_column(self, a: Ints, b: Ints, way: Ints) -> Ints:
        """Return the problem's column for each pair of jobs and way to run.

        A way to run has the same number in the problem and in the grouped problem.
        """
        pairs = np.flatnonzero(self.problem.columns.is_pair)
        n, ways = len(self.problem.jobs), _ways(self.problem)
        columns = self.problem.columns
        key = _pair_key(columns.first[pairs], columns.second[pairs], self.problem.way[pairs], n, ways)
        order = np.argsort(key)
        return pairs[order[np.searchsorted(key[order], _pair_key(a, b, way, n, ways))]]

    def _pair_backfill(self, allocation: Allocation) -> np.ndarray:
        n, ways = len(self.problem.jobs), _ways(self.problem)
        # The columns of pairs of groups, and those of pairs of jobs.
        blocks, pairs = (
            np.flatnonzero(self.grouped.columns.is_pair),
            np.flatnonzero(self.problem.columns.is_pair),
        )
        columns, merged = self.problem.columns, self.grouped.columns
        key = _pair_key(merged.first[blocks], merged.second[blocks], self.grouped.way[blocks], n, ways)
        order = np.argsort(key)
        c, d = self.group_of[columns.first[pairs]], self.group_of[columns.second[pairs]]
        block = order[np.searchsorted(key[order], _pair_key(c, d, self.problem.way[pairs], n, ways))]
        out = np.zeros(len(columns), dtype=bool)
        out[pairs] = allocation.backfill[blocks[block]]
        return out


def group(problem: Problem, keys: Sequence[str] = (), apart: Ints | None = None) -> tuple[Problem, Grouping]:
    """Return the problem with one row for each group of jobs that a policy with these `keys` cannot tell apart.

    Jobs with different numbers in `apart` are never merged: they differ in facts that the problem does not contain.
    """
    unknown = [key for key in keys if key not in FACTS]
    if unknown:
        raise ProblemError(f"group: unknown key '{unknown[0]}', must be one of {', '.join(FACTS)}")
    n = len(problem.jobs)
    facts: list[np.ndarray] = [problem.jobs.gpus, problem.jobs.weight, *_quotas(problem)]
    if apart is not None:
        facts.append(apart)
    for key in keys:
        facts += FACTS[key](problem)
    # A row that already represents a group is not merged again.
    is_group = problem.jobs.count > 1
    if is_group.any():
        facts.append(np.where(is_group, np.arange(1, n + 1), 0))
    colour = _colours(problem, facts)
    if problem.any_pairs and n and colour.max() + 1 < n:
        colour = _renumber(_by_pairs(problem, colour))
    return _merge(problem, colour)


def _colours(problem: Problem, facts: list[np.ndarray]) -> Ints:
    """Return a colour (a number) for each job.

    Jobs have the same colour if their facts are equal and their columns for running alone are equal.
    Colours are numbered in the order of their first jobs.
    """
    n, columns = len(problem.jobs), problem.columns
    solo = np.flatnonzero(~columns.is_pair) if problem.any_pairs else np.arange(len(columns))
    if not problem.in_order:
        solo = solo[np.lexsort((problem.way[solo], columns.first[solo]))]
    # All facts of a job as bytes: jobs with the same bytes have the same colour.
    table = np.column_stack([_bits(fact) for fact in facts])
    ways = np.column_stack([_bits(problem.way[solo]), _bits(columns.first_rate[solo])])
    fact_bytes, way_bytes, width = table.tobytes(), ways.tobytes(), table.itemsize * table.shape[1]
    ends = (np.cumsum(np.bincount(columns.first[solo], minlength=n)) * ways.itemsize * 2).tolist()
    colour: dict[tuple[bytes, bytes], int] = {}
    out, start = [], 0
    for row, end in enumerate(ends):
        key = (fact_bytes[row * width : (row + 1) * width], way_bytes[start:end])
        out.append(colour.setdefault(key, len(colour)))
        start = end
    return np.array(out, np.int64)


def _by_pairs(problem: Problem, colour: Ints) -> Ints:
    """Split colours until jobs of the same colour have the same pair rates with the jobs of each colour."""
    columns, pairs = problem.columns, np.flatnonzero(problem.columns.is_pair)
    a, b, way = columns.first[pairs], columns.second[pairs], _bits(problem.way[pairs])
    ra, rb = _bits(columns.first_rate[pairs]), _bits(columns.second_rate[pairs])
    while True:
        # For each job, the sum of a hash of each of its pairs: the partner's colour, the way, and both rates.
        word = np.zeros(len(colour), dtype=np.uint64)
        for job, partner, rate, partner_rate in ((a, b, ra, rb), (b, a, rb, ra)):
            view = _hash(_hash(_hash(_bits(colour[partner]), 1) ^ way, 2) ^ rate, 3)
            np.add.at(word, job, _hash(view ^ _hash(partner_rate, 4), 5))
        # Colours are only split, so the loop ends. Jobs whose hashes collide stay together, and are checked below.
        finer = np.unique(np.stack([colour, word.view(np.int64)]), axis=1, return_inverse=True)[1].ravel()
        settled = finer.max() == colour.max()
        colour = finer.astype(np.int64)
        if settled:
            break
    # A block is all pair columns between two colours for one way to run. It must have a column for every pair of jobs
    # of these colours, all at equal rates. Otherwise, the jobs of both colours are not merged.
    while True:
        key = _pair_key(colour[a], colour[b], problem.way[pairs], len(colour), _ways(problem))
        low, high = np.minimum(colour[a], colour[b]), np.maximum(colour[a], colour[b])
        swapped = colour[a] > colour[b]
        r_low, r_high = np.where(swapped, rb, ra), np.where(swapped, ra, rb)
        _, leader, block, size_of_block = np.unique(
            key, return_index=True, return_inverse=True, return_counts=True
        )
        size = np.bincount(colour)
        expected_size = np.where(low == high, size[low] * (size[low] - 1) // 2, size[low] * size[high])
        bad = size_of_block[block] != expected_size
        bad |= (r_low != r_low[leader[block]]) | (r_high != r_high[leader[block]])
        bad |= (low == high) & (r_low != r_high)
        bad &= (size[low] > 1) | (size[high] > 1)
        if not bad.any():
            return colour
        is_split = np.isin(colour, np.unique(np.concatenate([low[bad], high[bad]])))
        colour = _renumber(np.where(is_split, len(colour) + np.arange(len(colour)), colour))


def _merge(problem: Problem, colour: Ints) -> tuple[Problem, Grouping]:
    """Merge the jobs of each colour."""
    n, columns = len(problem.jobs), problem.columns
    groups = int(colour.max()) + 1 if n else 0
    leader = np.empty(groups, dtype=np.int64)
    # Written in reverse, so that the leader of each colour is its first member, whose columns are kept.
    leader[colour[::-1]] = np.arange(n)[::-1]
    solo = np.flatnonzero(~columns.is_pair) if problem.any_pairs else np.arange(len(columns))
    if groups == n:
        return problem, Grouping(problem, problem, np.arange(n), solo, solo)
    led_columns = solo[leader[colour[columns.first[solo]]] == columns.first[solo]]
    pairs = np.flatnonzero(columns.is_pair)
    if pairs.size:
        key = _pair_key(
            colour[columns.first[pairs]], colour[columns.second[pairs]], problem.way[pairs], n, _ways(problem)
        )
        pairs = pairs[np.unique(key, return_index=True)[1]]
    kept = columns.take(np.concatenate([led_columns, pairs]))
    second = np.where(kept.is_pair, colour[kept.second], ALONE) if pairs.size else kept.second
    merged = derived(kept, first=colour[kept.first], second=second)
    count = np.bincount(colour, weights=problem.jobs.count, minlength=groups).astype(np.int64)
    jobs = derived(problem.jobs.take(leader), count=count)
    led = np.full(n, ALONE)
    led[leader] = np.arange(groups)
    quotas = problem.quotas.of_jobs(led)
    grouped = derived(
        problem, jobs=jobs, columns=merged, quotas=quotas, merged_from=(problem.jobs.ids, colour)
    )
    key = colour[columns.first] * _ways(problem) + problem.way
    order = np.argsort(key[led_columns])
    source = order[np.searchsorted(key[led_columns[order]], key[solo])]
    return grouped, Grouping(problem, grouped, colour, solo, source)


def _pair_key(a: Ints, b: Ints, way: Ints, n: int, ways: int) -> Ints:
    """Return one number for two rows, in either order, and a way to run."""
    return np.asarray((np.minimum(a, b) * np.int64(n) + np.maximum(a, b)) * np.int64(ways) + way)


def _ways(problem: Problem) -> int:
    return int(problem.way.max(initial=0)) + 1


def _renumber(colour: Ints) -> Ints:
    """Return the colours numbered by their first job, so that grouping keeps the order of jobs."""
    _, leader, inverse = np.unique(colour, return_index=True, return_inverse=True)
    rank = np.empty(len(leader), dtype=np.int64)
    rank[np.argsort(leader)] = np.arange(len(leader))
    return rank[inverse]


def _opposite_pairs(c: Ints, d: Ints) -> tuple[Ints, Ints, Floats]:
    """Lay the members of each group along a line of its own, of length 1; pair members that lie opposite each other."""
    n, m = len(c), len(d)
    # Positions along the lines are in units of 1 / (n m).
    cuts = np.unique(np.concatenate([np.arange(n + 1) * m, np.arange(m + 1) * n]))
    return c[cuts[:-1] // m], d[cuts[:-1] // n], np.diff(cuts) / (n * m)


def _circle(c: Ints) -> tuple[Ints, Ints, Floats]:
    """Pair each member with the next, and the last with the first."""
    n = len(c)
    if n == 2:
        return c[:1], c[1:], np.ones(1)
    return c, np.roll(c, -1), np.full(n, 1.0 / n)


def _bits(values: np.ndarray) -> Words:
    """Return the 64 bits of each number; 0.0 and -0.0 give the same."""
    if values.dtype == np.float64:
        return np.asarray((values + 0.0).view(np.uint64))
    return values.astype(np.uint64)


def _hash(word: Words, salt: int) -> Words:
    """Return a 64-bit hash (xor, shift, multiply) in which every bit depends on every bit of the input."""
    word = word + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))
