"""Invariants that hold in every state, whatever messages arrive in whatever order. Each rule yields its violations.

`check(state)` raises InvariantBroken with the violations of all rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from scheduler.core.accounts.cached import OF_A_JOB_MAX, OF_A_NODE_MAX
from scheduler.core.planning.budget_limits import limits_for
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeState
from scheduler.model.errors import InvariantBroken
from scheduler.model.jobs import TERMINAL, JobState
from scheduler.model.lease import HOLDING, Phase, nodes_of
from scheduler.rounds.inputs import Held


def check(state: SchedulerState) -> None:
    """Raise InvariantBroken with every violation."""
    violations = [f"{rule.__name__}: {violation}" for rule in RULES for violation in rule(state)]
    if violations:
        raise InvariantBroken(f"at {state.now_s:g} s:\n  " + "\n  ".join(violations))


def one_holder_per_gpu(state: SchedulerState) -> Iterator[str]:
    """A GPU is held by one lease, or by the two leases of one packed pair."""
    holders: dict[str, list[str]] = {}
    for name, holding in state.leases.items():
        if holding.phase in HOLDING:
            for gpu in holding.lease.gpus:
                holders.setdefault(gpu, []).append(name)
    for gpu, names in holders.items():
        if len(names) == 1:
            continue
        pair = [state.leases[name] for name in names]
        jobs = {h.lease.job for h in pair}
        together = len(names) == 2 and len(jobs) == 2 and len({h.lease.gpus for h in pair}) == 1
        # While one lease of a pair is stopping, the other may already have the bundle of a new pair.
        any_stopping = any(h.phase == Phase.STOPPING for h in pair)
        if not together or not (any_stopping or all(set(h.bundle.jobs) == jobs for h in pair)):
            yield f"GPU {gpu} is held by leases {names} of jobs {sorted(jobs)}"
    expected = {gpu: sorted(names, key=int) for gpu, names in holders.items()}
    if expected != {gpu: sorted(names, key=int) for gpu, names in state.holders.items()}:
        yield "the table of holders does not match the leases"


def gpus_fit_their_lease(state: SchedulerState) -> Iterator[str]:
    """A lease has as many different GPUs as its bundle has, all of the bundle's worker type."""
    for name, holding in state.leases.items():
        lease, bundle = holding.lease, holding.bundle
        if len(set(lease.gpus)) != bundle.gpus or len(lease.gpus) != bundle.gpus:
            yield f"lease {name} of {bundle} has GPUs {lease.gpus}"
        if lease.job not in bundle.jobs:
            yield f"lease {name} is for job {lease.job}, which is not in its bundle {bundle}"
        for node_name in nodes_of(lease.gpus):
            node = state.nodes.get(node_name)
            if node is None:
                yield f"lease {name} is on node {node_name}, which does not exist"
            elif node.spec.worker_type != bundle.worker_type:
                yield f"lease {name} of {bundle} is on node {node_name}, a {node.spec.worker_type}"


def jobs_know_their_leases(state: SchedulerState) -> Iterator[str]:
    """A job has at most one lease to run on and one that is ending, and both are leases of this job."""
    for job in state.jobs.values():
        for name, ending in ((job.lease, False), (job.leaving, True)):
            if name is None:
                continue
            holding = state.leases.get(name)
            if holding is None or holding.lease.job != job.id:
                yield f"job {job.id} has lease {name}, which does not exist or belongs to another job"
            elif (holding.phase == Phase.STOPPING) != ending:
                yield f"job {job.id}: lease {name} is {holding.phase}"
    for name, holding in state.leases.items():
        owner = state.jobs.get(holding.lease.job)
        if owner is None or name not in (owner.lease, owner.leaving):
            yield f"lease {name} of job {holding.lease.job} is unknown to the job"


def gpu_quotas_are_kept(state: SchedulerState) -> Iterator[str]:
    """The leases under a quota hold at most its GPUs, apart from leases granted before the quotas last changed."""
    for quota in {quota for job in state.active.values() for quota in state.gpu_quotas.of(job.spec)}:
        leases = [
            holding
            for holding in state.leases.values()
            if holding.phase in HOLDING
            and quota.worker_type in ("*", holding.bundle.worker_type)
            and quota in state.gpu_quotas.of(state.jobs[holding.lease.job].spec)
        ]
        older = [holding for holding in leases if int(holding.lease.id) < state.quotas_from_lease]
        before = {gpu for holding in older for gpu in holding.lease.gpus}
        held = {gpu for holding in leases for gpu in holding.lease.gpus}
        if len(held) > quota.gpus and held - before:
            names = ", ".join(holding.lease.id for holding in leases)
            yield f"{quota.level} holds {len(held)} GPUs of {quota.worker_type} of {quota.gpus}, by leases {names}"


def budgets_are_kept(state: SchedulerState) -> Iterator[str]:
    """A budget covers what its leases cost to their ends, apart from leases granted before the quotas last changed."""
    limits = limits_for(state, state.now_s, state.round.ends_s, state.active)
    for (budget, period), limit in zip(limits.rows, limits.limits, strict=True):
        leases = [
            name
            for name, holding in state.leases.items()
            if budget in state.budgets.of(state.jobs[holding.lease.job].spec)
            and int(name) >= state.quotas_from_lease
            # GPUs without a price cost nothing, however much is spent.
            and limit.price[holding.bundle.worker_type] > 0
        ]
        if leases and limit.left < -1e-6:
            yield (
                f"{budget.level} will exceed its {budget.limit:g} {budget.resource} of the {budget.period} from "
                f"{period.starts_s:g} by {-limit.left:g}, with leases {', '.join(leases)}"
            )


def job_quotas_are_kept(state: SchedulerState) -> Iterator[str]:
    """A quota has at most its number of jobs with leases, apart from leases granted before the quotas last changed."""
    running: dict[str, int] = {}
    for holding in state.leases.values():
        if holding.phase in HOLDING:
            job = holding.lease.job
            running[job] = min(int(holding.lease.id), running.get(job, state.next_lease))
    for quota in {quota for job in running for quota in state.running_quotas.of(state.jobs[job].spec)}:
        jobs = [job for job in running if quota in state.running_quotas.of(state.jobs[job].spec)]
        if len(jobs) > quota.jobs and any(running[job] >= state.quotas_from_lease for job in jobs):
            yield f"{quota.level} runs {len(jobs)} jobs of {quota.jobs}: {', '.join(sorted(jobs))}"


def states_fit_leases(state: SchedulerState) -> Iterator[str]:
    """A running job has a lease, which may be ending; a job in any other state has no lease but one that is ending."""
    for job in state.jobs.values():
        if job.state == JobState.RUNNING and job.lease is None and job.leaving is None:
            yield f"job {job.id} is running without a lease"
        if job.state != JobState.RUNNING and job.lease is not None:
            yield f"job {job.id} is {job.state} and has lease {job.lease}"
        if (job.state in TERMINAL) != (job.ended_s is not None):
            yield f"job {job.id} is {job.state}, and its end is {job.ended_s}"
        if (job.state in TERMINAL) == (job.id in state.active):
            yield f"job {job.id} is {job.state}, and is {'' if job.id in state.active else 'not '}listed as active"


def waiting_leases_wait(state: SchedulerState) -> Iterator[str]:
    """A lease is waiting if and only if it waits for other leases, which exist and list it as blocked."""
    for name, holding in state.leases.items():
        if (holding.phase == Phase.WAITING) != bool(holding.waits_for):
            yield f"lease {name} is {holding.phase} and waits for {sorted(holding.waits_for)}"
        for other in holding.waits_for:
            if other not in state.leases:
                yield f"lease {name} waits for lease {other}, which is closed"
            elif name not in state.blocks.get(other, ()):
                yield f"lease {name} waits for lease {other}, which is not listed as blocking it"


def claims_do_not_clash(state: SchedulerState) -> Iterator[str]:
    """A GPU is promised to one lease, or to the two leases of one pair."""
    for gpu, names in state.claims.items():
        active = [n for n in state.holders.get(gpu, ()) if state.leases[n].phase != Phase.STOPPING]
        promised = {*names, *active}
        jobs = {state.leases[name].lease.job for name in promised}
        bundles = {state.leases[name].bundle for name in promised}
        if len(promised) > 2 or (
            len(promised) == 2 and (len(bundles) > 1 or set(next(iter(bundles)).jobs) != jobs)
        ):
            yield f"GPU {gpu} is promised to leases {sorted(promised)} of jobs {sorted(jobs)}"


def planning_tables_match_leases(state: SchedulerState) -> Iterator[str]:
    """The tables from which rounds are planned match the jobs and the leases that are not ending.

    The table of held leases is also in the order of the leases.
    """
    active = [h for h in state.leases.values() if h.phase != Phase.STOPPING]
    if list(state.held_leases.items()) != [(h.lease.job, Held(h.bundle, h.lease.gpus)) for h in active]:
        yield f"the table of held leases is {state.held_leases}"
    if state.owners != Counter((job.spec.tenant, job.spec.user) for job in state.active.values()):
        yield f"the unfinished jobs by tenant and user are {dict(state.owners)}"
    if state.on_hold != {name for name, job in state.active.items() if job.state == JobState.HELD}:
        yield f"the jobs listed as on hold are {sorted(state.on_hold)}"
    if state.protectable != {job.id for job in state.active.values() if job.may_be_protected}:
        yield f"the jobs listed as protectable are {sorted(state.protectable)}"


def numbers_are_numbers(state: SchedulerState) -> Iterator[str]:
    """Steps, times and shares are finite and not negative."""
    for job in state.jobs.values():
        for field in ("steps_done", "steps_saved", "isolated_s", "run_s", "cost_usd"):
            value = getattr(job, field)
            if not (math.isfinite(value) and value >= 0):
                yield f"job {job.id}: {field} is {value}"
        if job.steps_saved > job.steps_done + 1e-6:
            yield f"job {job.id}: saved {job.steps_saved} steps of {job.steps_done}"
    table = state.shares
    for field in ("share", "entitled_s", "received_s"):
        values = getattr(table, field)
        if len(values) and not (values >= 0).all():
            yield f"shares: {field} is {values.min()}"


def dependencies_exist_and_block(state: SchedulerState) -> Iterator[str]:
    """A job waits only for jobs that exist, and does not run while it waits."""
    for job in state.jobs.values():
        for other in job.blocked_by:
            if other not in state.jobs and not job.is_terminal:
                yield f"job {job.id} waits for job {other}, which does not exist"
        if job.blocked_by and job.lease is not None:
            yield f"job {job.id} has lease {job.lease} and waits for {sorted(job.blocked_by)}"


def nodes_are_counted(state: SchedulerState) -> Iterator[str]:
    """The tables derived from nodes match the nodes."""
    if state.gpus_of != {name: node.every_gpu for name, node in state.nodes.items()}:
        yield "the table of GPUs does not match the nodes"
    sizes: dict[str, int] = {}
    for node in state.nodes.values():
        sizes[node.spec.worker_type] = sizes.get(node.spec.worker_type, 0) + node.spec.gpus
    stores = Counter(node.spec.store for node in state.nodes.values())
    if state.stores != stores:
        yield f"stores of checkpoints are {state.stores}, the nodes have {dict(stores)}"
    if state.size_of_type != sizes:
        yield f"GPUs by type are {state.size_of_type}, the nodes have {sizes}"


def nothing_names_forgotten_jobs(state: SchedulerState) -> Iterator[str]:
    """Everything used in decisions names only jobs that exist; jobs are in the order of their submission."""
    named = {
        "a row of shares": state.shares.job_row.keys(),
        "the allocation": state.allocation.shares.jobs if state.allocation is not None else (),
        "a lease": [job for holding in state.leases.values() for job in holding.bundle.jobs],
        "a reservation": [job for bundle in state.round.reserved.values() for job in bundle.jobs],
        "an array": [job for members in state.arrays.values() for job in members],
    }
    for where, jobs in named.items():
        unknown = sorted({job for job in jobs if job not in state.jobs})
        if unknown:
            yield f"{where} names {', '.join(unknown[:8])}, which the state lacks"
    orders = [job.order for job in state.jobs.values()]
    if orders != sorted(set(orders)) or (orders and orders[-1] >= state.next_order):
        yield f"jobs are not in the order of submission, or next_order ({state.next_order}) is not above all of theirs"


def cached_data_is_of_known_nodes(state: SchedulerState) -> Iterator[str]:
    """Cached data is that of nodes that are there; named data is that of jobs that exist; both are short lists."""
    book = state.cached
    for node, held in book.nodes.items():
        if node not in state.nodes or state.nodes[node].state is NodeState.LOST:
            yield f"node {node} has cached data, and is gone"
        if not 0 < len(held) <= OF_A_NODE_MAX:
            yield f"node {node} has {len(held)} data sets in its cache"
    for name in book.jobs.keys() - state.jobs.keys():
        yield f"job {name} has named data, and does not exist"
    for owner, data in (*book.jobs.items(), *book.pools.items()):
        if not 0 < len(data) <= OF_A_JOB_MAX:
            yield f"{owner} has named {len(data)} data sets"


Rule = Callable[[SchedulerState], Iterator[str]]
RULES: tuple[Rule, ...] = (
    one_holder_per_gpu,
    gpus_fit_their_lease,
    jobs_know_their_leases,
    gpu_quotas_are_kept,
    budgets_are_kept,
    job_quotas_are_kept,
    states_fit_leases,
    waiting_leases_wait,
    claims_do_not_clash,
    planning_tables_match_leases,
    numbers_are_numbers,
    dependencies_exist_and_block,
    nodes_are_counted,
    nothing_names_forgotten_jobs,
    cached_data_is_of_known_nodes,
)
