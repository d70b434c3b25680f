"""Handlers of messages from nodes: joining, reports, silence; and the lapse of leases without reports.

A report counts only for leases that its node holds. Anything else in it is out of date, and the node gets its current
set of leases in reply.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.core import failed_starts, on_failures, on_jobs, on_rounds
from scheduler.core.accounts import budgets
from scheduler.core.accounts.on_cached import drop_cache_if_gone
from scheduler.core.accounts.on_measured import on_measured
from scheduler.core.facts import (
    CheckpointSaved,
    GpusBroken,
    GpusWithheld,
    JobMoved,
    LeaseClosed,
    LeasesResumed,
    NodeJoined,
    NodeMoved,
    ProgressMade,
    RanksExited,
)
from scheduler.core.messages import Exit, NodeHello, NodeReport, NodeSilent, Progress
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.cluster import SILENT, Node, NodeSpec, NodeState
from scheduler.model.errors import InvalidSpec, Refused
from scheduler.model.jobs import TERMINAL, Job, JobState, Move
from scheduler.model.lease import SENT, STOPPING, WAITING, Holding, exit_words, nodes_of
from scheduler.model.plans import ran_out_of_memory

GONE = "its node cannot be reached"
# A job is held after this many failed starts in a row.
STARTS_MAX = 10
# The exit code that agents report if a program could not be started.
COULD_NOT_START = 127
# Replaces an exit code that no process can have.
UNKNOWN_CODE = 255


def on_hello(out: Outcome, message: NodeHello) -> None:
    """Let a node join or rejoin. Leases that it still runs continue if they are valid."""
    state = out.state
    try:
        spec = message.spec.checked()
    except InvalidSpec as error:
        out.refuse_node(message.spec.name, error)
        return
    known = state.nodes.get(spec.name)
    if known is not None and known.spec != spec and _breaks_leases(state, known, spec):
        conflict = Refused(
            f"node '{spec.name}' still has leases as a node with {known.spec.gpus} × {known.spec.worker_type}"
        )
        out.refuse_node(spec.name, conflict)
        return
    was_silent = known is not None and known.state == NodeState.SILENT and known.spec == spec
    if known is None or known.spec != spec or known.state in (NodeState.SILENT, NodeState.LOST):
        broken = sorted(known.broken) if known is not None and _same_gpus(known.spec, spec) else ()
        out.fact(NodeJoined(spec=spec))
        # A broken GPU is still broken after its node rejoins.
        if broken and not state.nodes[spec.name].broken.issuperset(broken):
            out.fact(GpusBroken(node=spec.name, gpus=tuple(broken)))
    on_failures.on_trouble(out, spec.name, message.trouble)
    drop_cache_if_gone(out, message)
    held = {h.lease: h for h in message.held}
    on_jobs.recall_planned(out, spec, held)
    resumed, started = [], []
    for holding in state.on_node(spec.name):
        report = held.get(holding.lease.id)
        if report is None:
            if holding.phase is not SENT and spec.name not in holding.exited:
                # The agent restarted without this lease's processes, so nothing else will report their exit.
                _exited(out, spec.name, holding, _assumed_exit(out, holding))
            continue
        if was_silent and _continues(state, holding):
            resumed.append(holding.lease.id)
        if 0 < report.ran_s <= bounds.REPORT_S.most and holding.started_s is None:
            started.append(holding.lease.id)
    if resumed:
        for name in resumed:
            out.resend_for(state.leases[name])
        out.fact(LeasesResumed(leases=tuple(resumed)))
    for name in started:
        out.note_start(name)
    out.resend((spec.name,))
    out.wants_review = True
    on_rounds.kick(out)


def _same_gpus(spec: NodeSpec, other: NodeSpec) -> bool:
    """Whether an index means the same GPU in both descriptions."""
    return (spec.worker_type, spec.gpus) == (other.worker_type, other.gpus)


def _breaks_leases(state: SchedulerState, node: Node, spec: NodeSpec) -> bool:
    """Whether a lease holds, or waits for, a GPU that the node no longer has by its new description."""
    in_use = [gpu for gpu in node.every_gpu if gpu in state.holders or gpu in state.claims]
    return bool(in_use) and (
        spec.worker_type != node.spec.worker_type
        or any(int(gpu.rpartition(":")[2]) >= spec.gpus for gpu in in_use)
    )


def _continues(state: SchedulerState, holding: Holding) -> bool:
    """Whether a lease was ended only by the silence of its node, and can continue because nothing has changed since."""
    job = state.jobs[holding.lease.job]
    return (
        holding.phase is STOPPING
        and holding.why == GONE
        and job.state == JobState.RUNNING
        and job.lease is None
        # A part of the gang may have stopped already.
        and not (holding.exited or holding.died)
        and all(state.nodes[name].state != NodeState.SILENT for name in nodes_of(holding.lease.gpus))
        # Budgets have paid for no later round than the one in which the lease was ended.
        and (not state.budgets.of(job.spec) or (holding.stop_by_s or 0.0) >= budgets.ends_s_of_round(state))
        # Other leases may wait for its end, because they need its GPUs or their quota does not admit both.
        and not state.blocks.get(holding.lease.id)
        and not any(gpu in state.claims for gpu in holding.lease.gpus)
    )


def on_report(out: Outcome, message: NodeReport) -> None:
    """Record the starts, progress, exits and troubles that a node reports."""
    node = out.state.nodes.get(message.node)
    if node is None:
        return
    out_of_date = message.generation != node.generation
    if message.started or message.progress:
        _record_progress(out, node, message)
    on_measured(out, message.node, message.measured)
    if message.exits:
        out_of_date |= not _record_exits(out, node, message.exits)
    broken: tuple[int, ...] = ()
    if message.broken_gpus:
        broken = tuple(i for i in message.broken_gpus if 0 <= i < node.spec.gpus and i not in node.broken)
        if broken:
            out.fact(GpusBroken(node=message.node, gpus=broken))
    withheld = node.withheld
    if message.withheld_gpus is not None:
        withheld = {i for i in message.withheld_gpus if 0 <= i < node.spec.gpus}
    changed = withheld != node.withheld
    if changed:
        out.fact(GpusWithheld(node=message.node, gpus=tuple(sorted(withheld))))
    if message.trouble is not None and failed_starts.changes_state(node, message.trouble):
        on_failures.on_trouble(out, message.node, message.trouble)
        changed = True
    if message.idle_s is not None:
        on_failures.on_idle(out, message.node, message.idle_s)
    if out_of_date:
        out.resend((message.node,))
    if message.exits or broken or changed:
        out.wants_review = True
        if not out.kicked:
            out.kicked = True
            on_rounds.kick(out)


def _held(state: SchedulerState, node: str, lease: str) -> Holding | None:
    """Return the lease if it holds GPUs of this node; otherwise None."""
    holding = state.leases.get(lease)
    if holding is None or holding.phase is WAITING or node not in nodes_of(holding.lease.gpus):
        return None
    return holding


def _record_progress(out: Outcome, node: Node, message: NodeReport) -> None:
    """Record starts and progress. A job that reports progress has started."""
    state, name = out.state, message.node
    for lease in message.started:
        holding = _held(state, name, lease)
        if holding is not None and holding.started_s is None:
            out.note_start(lease)
    accepted: list[tuple[Progress, Holding]] = []
    for progress in message.progress:
        holding = _held(state, name, progress.lease)
        if holding is not None and _is_plausible(progress) and _is_newer(progress, holding):
            accepted.append((progress, holding))
            if holding.started_s is None:
                out.note_start(progress.lease)
    if accepted:
        for progress, holding in accepted:
            _note_checkpoint(out, node, state.jobs[holding.lease.job], holding, progress)
        out.fact(ProgressMade(progress=tuple([progress for progress, _ in accepted])))


def _record_exits(out: Outcome, node: Node, exits: Sequence[Exit]) -> bool:
    """Record exits; return whether all of them were new."""
    state, name, all_new = out.state, node.spec.name, True
    out.settle_starts()
    for end in exits:
        holding = _held(state, name, end.lease)
        if holding is None or name in holding.exited:
            all_new = False
            continue
        job = state.jobs[holding.lease.job]
        end = _plausible_exit(out, job, holding, end)
        if end.outcome != "finished" or len(nodes_of(holding.lease.gpus)) > 1:
            _note_checkpoint(out, node, job, holding, end)
        _exited(out, name, holding, end)
    return all_new


def _note_checkpoint(out: Outcome, node: Node, job: Job, holding: Holding, report: Progress | Exit) -> None:
    """Record that a job saved in another store than before. In a gang, only the first node counts: rank 0 saves."""
    if (
        0 < report.saved != job.steps_saved
        and job.checkpoint_at != node.spec.store
        and job.state not in TERMINAL
        and nodes_of(holding.lease.gpus)[0] == node.spec.name
    ):
        out.fact(CheckpointSaved(job=job.id, place=node.spec.store))


def _is_plausible(report: Progress | Exit) -> bool:
    """Whether the figures of a report are within their limits."""
    return 0 <= report.saved <= report.steps <= bounds.REPORT_STEPS.most and bounds.REPORT_S.admits(
        report.stepping_s
    )


def _is_newer(report: Progress, holding: Holding) -> bool:
    """Whether this report is no older than the last one."""
    return report.stepping_s >= holding.stepping_s


def _plausible_exit(out: Outcome, job: Job, holding: Holding, end: Exit) -> Exit:
    """Return this exit with implausible figures replaced by known ones. The lease ends in any case."""
    if len(end.detail) > bounds.LAST_LINES_CHARS_MAX:
        end = msgspec.structs.replace(end, detail=end.detail[-bounds.LAST_LINES_CHARS_MAX :])
    if not bounds.EXIT_CODE.admits(end.code):
        end = msgspec.structs.replace(end, code=UNKNOWN_CODE)
    if bounds.REPORT_S.admits(end.ran_s):
        # The job never ran under this lease, or ended before it could report steps.
        if end.ran_s == 0 or end.steps == end.stepping_s == 0:
            return msgspec.structs.replace(
                end, steps=job.steps_done, saved=job.steps_saved, stepping_s=holding.stepping_s
            )
        if _is_plausible(end):
            return end
    return msgspec.structs.replace(_assumed_exit(out, holding), outcome=end.outcome, code=end.code)


def _exited(out: Outcome, node: str, holding: Holding, end: Exit) -> None:
    """Record a lease's exit on one node. A rank that stops without finishing ends its gang's lease."""
    nodes = nodes_of(holding.lease.gpus)
    if len(nodes) > 1:
        if end.outcome != "finished":
            how = "stopped" if end.outcome == "yielded" else "died"
            on_jobs.recall(out, holding.lease.id, f"a rank on {node} {how}")
        out.fact(RanksExited(node=node, exit=end))
        if len(holding.exited) < len(nodes):
            return
        end = _merged_exit(holding, end)
    _close(out, holding, end, nodes)


def _merged_exit(holding: Holding, last: Exit) -> Exit:
    """Merge the exits of a gang's nodes. The steps are those of rank 0, which saves the checkpoints on the first node.

    If a rank died, its death is the outcome. The other ranks ended only because of it, so this was no preemption.
    """
    lead = holding.lead
    if lead is not None:
        figures = {"steps": lead.steps, "saved": lead.saved, "stepping_s": lead.stepping_s}
        ran_s = max(lead.ran_s, last.ran_s)
        last = msgspec.structs.replace(last, outcome=lead.outcome, ran_s=ran_s, **figures)
    if holding.died:
        died = {"outcome": holding.died, "code": holding.code, "detail": holding.last_lines}
        return msgspec.structs.replace(last, **died)
    return last


def _close(out: Outcome, holding: Holding, end: Exit, nodes: Sequence[str], lapsed: bool = False) -> None:
    """Close a lease: its GPUs become free, and leases that waited for them are sent."""
    state = out.state
    job = state.jobs[holding.lease.job]
    waiting = tuple(state.blocks.get(end.lease, ()))
    out.resend(nodes)
    out.fact(LeaseClosed(exit=end, lapsed=lapsed))
    for name in waiting:
        following = state.leases.get(name)
        if following is not None and following.phase is SENT:
            out.resend_for(following)
            out.untold.add(name)
    if job.state not in TERMINAL:
        _after_exit(out, job, end, holding)
    if end.outcome == "node_failed":
        on_failures.judge(out, job)


def _after_exit(out: Outcome, job: Job, end: Exit, holding: Holding) -> None:
    """Decide whether a job whose attempt ended badly gets another attempt."""
    spec = job.spec
    if end.outcome == "failed":
        if on_failures.strike_out(out, job, holding.bundle, end):
            return
        if job.failures > spec.retries:
            again = "" if spec.retries == 0 else f" after {spec.retries} of {spec.retries} retries"
            on_jobs.fail(out, job, f"it {_ending(end, holding)}{again}")
        elif job.state == JobState.RUNNING:
            why = f"attempt {job.attempt} {_ending(end, holding)}"
            out.fact(JobMoved(job=job.id, move=Move.RETRY, why=why))
    elif end.outcome == "node_failed":
        if spec.retries_node is not None and job.node_failures > spec.retries_node:
            on_jobs.fail(out, job, _limit_reached("its node failed", job.node_failures, "retries_node"))
        elif job.unstarted >= STARTS_MAX and job.state != JobState.HELD:
            why = f"{job.unstarted} starts in a row failed, the last on {', '.join(nodes_of(holding.lease.gpus))}"
            on_jobs.give_up(out, job, Move.HOLD, why)
    elif (
        end.outcome == "yielded"
        and spec.retries_preemption is not None
        and job.preemptions > spec.retries_preemption
    ):
        on_jobs.fail(out, job, _limit_reached("it was preempted", job.preemptions, "retries_preemption"))


def _limit_reached(event: str, times: int, limit: str) -> str:
    return f"{event} {times} time{'s' if times > 1 else ''} ({limit} = {times - 1})"


def _ending(end: Exit, holding: Holding) -> str:
    """Describe how an attempt failed without quoting its log, which not all users may read."""
    last = end.detail.rstrip().rpartition("\n")[2]
    # A line written by the agent rather than the job.
    if end.code == COULD_NOT_START and last.startswith("[gavel: "):
        return f"could not be started on {holding.died_on or nodes_of(holding.lease.gpus)[0]}"
    return exit_words(end.code)


def _assumed_exit(out: Outcome, holding: Holding) -> Exit:
    """Return the exit to assume for a lease without a report: the job is back at its last checkpoint."""
    job = out.state.jobs[holding.lease.job]
    # No start was reported, so no process is known to have run, and the node counts as healthy.
    if holding.started_s is None:
        return Exit(holding.lease.id, "yielded", job.steps_done, job.steps_saved, 0.0, 0.0)
    # The lease ran at most up to the end that was sent to the node.
    until_s = out.now_s
    if holding.stop_by_s is not None:
        margin_s = out.state.settings.lease_margin_s + holding.extra_save_s
        until_s = min(until_s, holding.stop_by_s - margin_s)
    ran_s = max(until_s - holding.started_s, 0.0)
    return Exit(holding.lease.id, "node_failed", job.steps_saved, job.steps_saved, holding.stepping_s, ran_s)


def on_silent(out: Outcome, message: NodeSilent) -> None:
    """Stop sending work to a node that is silent. Its jobs may run to the end of their leases."""
    state = out.state
    node = state.nodes.get(message.node)
    if node is None or node.state in (NodeState.SILENT, NodeState.LOST):
        return
    out.fact(NodeMoved(node=message.node, state=NodeState.SILENT, why="the link is gone"))
    for holding in state.on_node(message.node):
        on_jobs.recall(out, holding.lease.id, GONE)
    for name in sorted({lease for gpu in node.every_gpu for lease in state.claims.get(gpu, ())}, key=int):
        on_jobs.recall(out, name, GONE)
    if not state.on_node(message.node):  # no lease will lapse
        out.fact(NodeMoved(node=message.node, state=NodeState.LOST, why="nothing ran there"))
    out.leases_stop = True
    on_rounds.kick(out)


def lapse(out: Outcome) -> None:
    """Close leases that have lapsed without a report, and mark silent nodes without leases as lost."""
    state = out.state
    silent = [name for name, node in state.nodes.items() if node.state is SILENT]
    if not silent and len(state.leases) == len(state.held_leases):
        # No node is silent and no lease is ending.
        return
    lapsed = [h for h in state.leases.values() if h.stop_by_s is not None and h.stop_by_s <= out.now_s]
    for holding in sorted(lapsed, key=lambda h: int(h.lease.id)):
        if holding.lease.id in state.leases:
            end = _assumed_exit(out, holding)
            if ran_out_of_memory(holding.last_lines):
                end = _merged_exit(holding, end)
            unreported = holding.started_s is None and holding.why != GONE
            # Reports about a lease of an earlier scheduler process may have been lost with that process.
            of_this_process = holding.lease.epoch == state.epoch
            if unreported and of_this_process and failed_starts.hung_on(state, holding):
                end = msgspec.structs.replace(end, outcome="node_failed")
            _close(out, holding, end, nodes_of(holding.lease.gpus), lapsed=True)
    for name in sorted(silent):
        if not state.on_node(name):
            out.fact(NodeMoved(node=name, state=NodeState.LOST, why="its leases have lapsed"))
    out.leases_stop = True
    out.wants_review = True
    on_rounds.kick(out)
