"""Answer a Solve with a Solved by asking the policy. `answer` is a pure function for live daemons and simulations.

Rates of pairs are given by kind of job, not by job. Jobs that the policy cannot tell apart are merged into one row
first; pair columns are added between the merged rows; and the answer is split back into pairs of jobs. So n jobs do
not need n² columns.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from policies.engine.checks import derived
from policies.engine.grouping import group
from policies.engine.quotas import add_as_exceeded, exceeded, not_too_wide
from policies.engine.twins import keep_types
from policies.errors import BrokenPolicy, OutOfTime, PolicyError
from policies.problem import ALONE, Allocation, Columns, Ints, Policy, Problem
from policies.registry import entry_of, reads, resolve
from scheduler.core.effects import Pairs, Solve
from scheduler.core.messages import Shares, Solved

FALLBACK = "fifo"
# The journal keeps the reason of a failed answer; the text of a foreign error has any length.
FAILED_CHARS_MAX = 2000


def answer(question: Solve, time_limit_s: float | None = None) -> Solved:
    """Return the policy's allocation; if the policy fails, the shares of first come, first served, and the reason.

    Without a time limit, as in simulations, nothing waits for the answer: a policy that does not end raises OutOfTime.
    """
    try:
        problem, allocation = solve(question, time_limit_s)
        allocation = _keep_in_place(question, problem, allocation)
        if not (np.isfinite(allocation.time_share).all() and np.isfinite(allocation.isolated_rate).all()):
            raise ArithmeticError("the answer holds numbers that are not finite")
        failed = ""
    except Exception as error:
        # No error of a policy may stop scheduling.
        if isinstance(error, OutOfTime) and time_limit_s is None:
            raise
        why = str(error) if isinstance(error, PolicyError) else repr(error)
        # A broken policy is named in the reason already.
        failed = why if isinstance(error, BrokenPolicy | OutOfTime) else f"{question.policy}: {why}"
        failed = failed[:FAILED_CHARS_MAX]
        problem = question.problem
        allocation = resolve(FALLBACK)(problem)
    return Solved(
        number=question.number,
        policy=allocation.policy if failed else question.policy,
        shares=shares(problem, allocation),
        failed=failed,
        value=float(allocation.value) if math.isfinite(allocation.value) else None,
        optimal=allocation.optimal,
        notes=allocation.notes,
    )


def solve(question: Solve, time_limit_s: float | None = None) -> tuple[Problem, Allocation]:
    """Return the allocation, and the problem of all jobs with the columns that the allocation uses."""
    policy = resolve(question.policy, time_limit_s)
    pairs = question.pairs
    if pairs is None or not len(pairs.first):
        return question.problem, policy(question.problem)
    problem = question.problem
    problem = problem.restrict(np.arange(len(problem.jobs)), np.flatnonzero(not_too_wide(problem)))
    joined, allocation = add_as_exceeded(
        problem,
        lambda relaxed: _paired(question.policy, policy, relaxed, pairs),
        partial(_exceeded, problem),
        all_at_once=not entry_of(question.policy).optimum,
    )
    return derived(joined, quotas=problem.quotas), allocation


def _paired(spec: str, policy: Policy, problem: Problem, pairs: Pairs) -> tuple[Problem, Allocation]:
    """Return the allocation with pairs between jobs whose kinds have pair rates, and the problem with their columns."""
    grouped, back = group(problem, entry_of(spec).reads, apart=pairs.kind + 1)
    kind = np.full(len(grouped.jobs), ALONE)
    kind[back.group_of] = pairs.kind
    paired = derived(grouped, columns=_with_pairs(grouped, pairs, kind))
    return back.split(paired, policy(paired))


def _exceeded(problem: Problem, answer: tuple[Problem, Allocation]) -> Ints:
    """Return the quotas of the problem that an answer to it exceeds."""
    joined, allocation = answer
    return exceeded(derived(joined, quotas=problem.quotas), allocation.time_share)


def _keep_in_place(question: Solve, problem: Problem, allocation: Allocation) -> Allocation:
    """Return the allocation with fewer moves between worker types on which a job is equally fast. No rate changes."""
    if question.at is None:
        return allocation
    by_price = reads(allocation.policy, "price_per_gpu_hour")
    time_share = keep_types(problem, allocation.time_share, question.at, by_price=by_price)
    return replace(allocation, time_share=time_share)


def _with_pairs(grouped: Problem, pairs: Pairs, kind: Ints) -> Columns:
    """Return the columns of the merged problem, plus a column for each pair of rows whose kinds have pair rates."""
    kinds = int(max(pairs.first.max(), pairs.second.max(), kind.max(initial=0))) + 1
    order = np.argsort(kind, kind="stable")
    member_count = np.bincount(kind[kind >= 0], minlength=kinds)
    start = np.cumsum(member_count) - member_count + int((kind < 0).sum())
    # Pair every member of the first kind with every member of the second, as one long list.
    pair_count = member_count[pairs.first] * member_count[pairs.second]
    pair = np.repeat(np.arange(len(pair_count)), pair_count)
    position = np.arange(len(pair)) - np.repeat(np.cumsum(pair_count) - pair_count, pair_count)
    a, b = position // member_count[pairs.second[pair]], position % member_count[pairs.second[pair]]
    first, second = order[start[pairs.first[pair]] + a], order[start[pairs.second[pair]] + b]
    same = pairs.first[pair] == pairs.second[pair]
    distinct = ~same | (a < b) | ((a == b) & (grouped.jobs.count[first] > 1))
    pair, first, second = pair[distinct], first[distinct], second[distinct]
    own = grouped.columns
    return derived(
        own,
        first=np.concatenate([own.first, first]),
        second=np.concatenate([own.second, second]),
        worker_type=np.concatenate([own.worker_type, pairs.worker_type[pair]]),
        gpus=np.concatenate([own.gpus, pairs.gpus[pair]]),
        first_rate=np.concatenate([own.first_rate, pairs.first_rate[pair]]),
        second_rate=np.concatenate([own.second_rate, pairs.second_rate[pair]]),
        label=own.label + ("",) * len(pair),
        cpus=np.concatenate([own.cpus, np.zeros(len(pair))]),
    )


def shares(problem: Problem, allocation: Allocation) -> Shares:
    """Return an allocation as plain lists."""
    columns = problem.columns
    return Shares(
        jobs=problem.jobs.ids,
        worker_types=problem.worker_types,
        first=columns.first.tolist(),
        second=columns.second.tolist(),
        worker_type=columns.worker_type.tolist(),
        gpus=columns.gpus.tolist(),
        label=columns.label if any(columns.label) else (),
        share=allocation.time_share.clip(0.0, 1.0).tolist(),
        no_backfill=np.flatnonzero(~allocation.backfill).tolist(),
        price=[p if math.isfinite(p) else None for p in allocation.price.tolist()],
        isolated_rate=allocation.isolated_rate.tolist(),
    )
