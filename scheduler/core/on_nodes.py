"""What nodes report, and what becomes of them: `on_<message>(out, message)`.

A report counts only for leases that its node holds. Whatever else it says is old news, and is answered with the
set of leases that holds now.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import msgspec

from scheduler.core import failed_starts, on_failed_starts, on_jobs, on_rounds
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
from scheduler.model.lease import SENT, STOPPING, WAITING, Holding, nodes_of

GONE = "its node cannot be reached"
STARTS_MAX = 10  # starts of a job in a row of which nothing came, before it is held
COULD_NOT_START = 127  # the exit code that agents report of what they could not start
UNKNOWN_CODE = 255  # stands for an exit code that no process can have


def on_hello(out: Outcome, message: NodeHello) -> None:
    """A node joins or is back. What it still runs goes on, if that is still what it should run."""
    state = out.state
    try:
        spec = message.spec.checked()
    except InvalidSpec as error:
        out.refuse_node(message.spec.name, error)
        return
    known = state.nodes.get(spec.name)
    if known is not None and known.spec != spec and _in_the_way(state, known, spec):
        wrong = Refused(
            f"node '{spec.name}' has leases as another node: {known.spec.gpus} × {known.spec.worker_type}"
        )
        out.refuse_node(spec.name, wrong)
        return
    back_in_time = known is not None and known.state == NodeState.SILENT and known.spec == spec
    if known is None or known.spec != spec or known.state in (NodeState.SILENT, NodeState.LOST):
        broken = sorted(known.broken) if known is not None and _same_gpus(known.spec, spec) else ()
        out.fact(NodeJoined(spec=spec))
        if broken and not state.nodes[spec.name].broken.issuperset(broken):  # to come back mends nothing
            out.fact(GpusBroken(node=spec.name, gpus=tuple(broken)))
    on_failed_starts.on_trouble(out, spec.name, message.trouble)
    held = {h.lease: h for h in message.held}
    resumed, started = [], []
    for holding in state.on_node(spec.name):
        said = held.get(holding.lease.id)
        if said is None:
            if holding.phase is not SENT and spec.name not in holding.exited:
                # the agent and its processes were gone in between: nobody else will report this exit
                _exited(out, spec.name, holding, _lost(out, holding))
            continue
        if back_in_time and _goes_on(state, holding):
            resumed.append(holding.lease.id)
        if 0 < said.ran_s <= bounds.REPORT_S.most and holding.started_s is None:
            started.append(holding.lease.id)
    if resumed:
        for name in resumed:
            out.touched(state.leases[name])
        out.fact(LeasesResumed(leases=tuple(resumed)))
    for name in started:
        out.begun(name)
    out.dirty((spec.name,))
    out.wants_review = True
    on_rounds.kick(out)


def _same_gpus(one: NodeSpec, other: NodeSpec) -> bool:
    """Whether an index means the same GPU of both."""
    return (one.worker_type, one.gpus) == (other.worker_type, other.gpus)


def _in_the_way(state: SchedulerState, node: Node, spec: NodeSpec) -> bool:
    """Whether a lease is, or will be, on a GPU that the node as it now describes itself does not have."""
    taken = [gpu for gpu in node.every_gpu if gpu in state.holders or gpu in state.claims]
    return bool(taken) and (
        spec.worker_type != node.spec.worker_type
        or any(int(gpu.rpartition(":")[2]) >= spec.gpus for gpu in taken)
    )


def _goes_on(state: SchedulerState, holding: Holding) -> bool:
    """Whether a lease was ended by silence alone, and nothing has happened to its job in between."""
    job = state.jobs[holding.lease.job]
    return (
        holding.phase is STOPPING
        and holding.why == GONE
        and job.state == JobState.RUNNING
        and job.lease is None
        and not (holding.exited or holding.died)  # of a gang, one side may have stopped already
        and all(state.nodes[name].state != NodeState.SILENT for name in nodes_of(holding.lease.gpus))
        and not any(gpu in state.claims for gpu in holding.lease.gpus)  # nor are its GPUs promised
    )


def on_report(out: Outcome, message: NodeReport) -> None:
    """Starts, progress and exits."""
    node = out.state.nodes.get(message.node)
    if node is None:
        return
    old_news = message.generation != node.generation
    if message.started or message.progress:
        _going(out, node, message)
    if message.exits:
        old_news |= not _gone(out, node, message.exits)
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
    if message.trouble is not None and failed_starts.is_news(node, message.trouble):
        on_failed_starts.on_trouble(out, message.node, message.trouble)
        changed = True
    if old_news:
        out.dirty((message.node,))
    if message.exits or broken or changed:
        out.wants_review = True
        if not out.kicked:
            out.kicked = True
            on_rounds.kick(out)


def _held(state: SchedulerState, node: str, lease: str) -> Holding | None:
    """The lease, if the node has GPUs of it in its hands."""
    holding = state.leases.get(lease)
    if holding is None or holding.phase is WAITING or node not in nodes_of(holding.lease.gpus):
        return None
    return holding


def _going(out: Outcome, node: Node, message: NodeReport) -> None:
    """Starts, and how far jobs are. Who makes progress has started."""
    state, name = out.state, message.node
    for lease in message.started:
        holding = _held(state, name, lease)
        if holding is not None and holding.started_s is None:
            out.begun(lease)
    made: list[tuple[Progress, Holding]] = []
    for said in message.progress:
        holding = _held(state, name, said.lease)
        if holding is not None and _sane(said) and _newer(said, holding):
            made.append((said, holding))
            if holding.started_s is None:
                out.begun(said.lease)
    if made:
        for said, holding in made:
            _saved(out, node, state.jobs[holding.lease.job], holding, said)
        out.fact(ProgressMade(progress=tuple([said for said, _ in made])))


def _gone(out: Outcome, node: Node, exits: Sequence[Exit]) -> bool:
    """Processes have ended. Whether all of that is news."""
    state, name, all_new = out.state, node.spec.name, True
    out.settle_starts()
    for end in exits:
        holding = _held(state, name, end.lease)
        if holding is None or name in holding.exited:
            all_new = False
            continue
        job = state.jobs[holding.lease.job]
        end = _believed(out, job, holding, end)
        if end.outcome != "finished" or len(nodes_of(holding.lease.gpus)) > 1:
            _saved(out, node, job, holding, end)
        _exited(out, name, holding, end)
    return all_new


def _saved(out: Outcome, node: Node, job: Job, holding: Holding, said: Progress | Exit) -> None:
    """A job may have saved where its last checkpoint was not. Rank 0 saves, on the first node of a gang."""
    if (
        0 < said.saved != job.steps_saved
        and job.checkpoint_at != node.spec.place
        and job.state not in TERMINAL
        and nodes_of(holding.lease.gpus)[0] == node.spec.name
    ):
        out.fact(CheckpointSaved(job=job.id, place=node.spec.place))


def _sane(said: Progress | Exit) -> bool:
    """Figures within their limits; anything else is not believed."""
    return 0 <= said.saved <= said.steps <= bounds.REPORT_STEPS.most and bounds.REPORT_S.admits(
        said.stepping_s
    )


def _newer(said: Progress, holding: Holding) -> bool:
    """Whether nothing that was said later is known already."""
    return said.stepping_s >= holding.ran_s


def _believed(out: Outcome, job: Job, holding: Holding, end: Exit) -> Exit:
    """An exit is an exit, but figures that cannot be are replaced by what is known."""
    if len(end.detail) > bounds.LAST_LINES_CHARS_MAX:
        end = msgspec.structs.replace(end, detail=end.detail[-bounds.LAST_LINES_CHARS_MAX :])
    if not bounds.EXIT_CODE.admits(end.code):
        end = msgspec.structs.replace(end, code=UNKNOWN_CODE)
    if bounds.REPORT_S.admits(end.ran_s):
        if end.ran_s == 0 or end.steps == end.stepping_s == 0:  # it never ran, or ended before it could tell
            return msgspec.structs.replace(
                end, steps=job.steps_done, saved=job.steps_saved, stepping_s=holding.ran_s
            )
        if _sane(end):
            return end
    return msgspec.structs.replace(_lost(out, holding), outcome=end.outcome, code=end.code)


def _exited(out: Outcome, node: str, holding: Holding, end: Exit) -> None:
    nodes = nodes_of(holding.lease.gpus)
    if len(nodes) > 1:
        if end.outcome in ("failed", "node_failed"):  # the death of one rank ends the attempt everywhere
            on_jobs.recall(out, holding.lease.id, f"a rank on {node} died")
        out.fact(RanksExited(node=node, exit=end))
        if len(holding.exited) < len(nodes):
            return
        end = _of_gang(holding, end)
    _close(out, holding, end, nodes)


def _of_gang(holding: Holding, last: Exit) -> Exit:
    """What the exits of all its nodes come to. Done is what rank 0 says is done, if no rank died.

    Rank 0 is on the first node, and knows what was saved. That others yielded because one died is no preemption.
    """
    lead = holding.lead
    if lead is not None:
        last = msgspec.structs.replace(
            last,
            outcome=lead.outcome,
            steps=lead.steps,
            saved=lead.saved,
            stepping_s=lead.stepping_s,
            ran_s=max(lead.ran_s, last.ran_s),
        )
    if holding.died:
        died = {"outcome": holding.died, "code": holding.code, "detail": holding.last_lines}
        return msgspec.structs.replace(last, **died)
    return last


def _close(out: Outcome, holding: Holding, end: Exit, nodes: Sequence[str], lapsed: bool = False) -> None:
    """A lease is over: its GPUs are free, and whoever waited for them can go."""
    state = out.state
    job = state.jobs[holding.lease.job]
    waiting = tuple(state.blocks.get(end.lease, ()))
    out.dirty(nodes)
    out.fact(LeaseClosed(exit=end, lapsed=lapsed))
    for name in waiting:
        following = state.leases.get(name)
        if following is not None and following.phase is SENT:
            out.touched(following)
            out.untold.add(name)
    if job.state not in TERMINAL:
        _after_exit(out, job, end, nodes)
    if end.outcome == "node_failed":
        on_failed_starts.judge(out, job)


def _after_exit(out: Outcome, job: Job, end: Exit, nodes: Sequence[str]) -> None:
    """Whether a job whose attempt ended badly gets another one."""
    spec = job.spec
    if end.outcome == "failed":
        if job.failures > spec.retries:
            again = "" if spec.retries == 0 else f" after {spec.retries} of {spec.retries} retries"
            on_jobs.fail(out, job, f"it {_ending(end)}{again}")
        elif job.state == JobState.RUNNING:
            why = f"attempt {job.attempt} {_ending(end)}"
            out.fact(JobMoved(job=job.id, move=Move.RETRY, why=why))
    elif end.outcome == "node_failed":
        if spec.retries_node is not None and job.node_failures > spec.retries_node:
            on_jobs.fail(out, job, _limit_reached("its node failed", job.node_failures, "retries_node"))
        elif job.unstarted >= STARTS_MAX and job.state != JobState.HELD:
            why = f"{job.unstarted} starts in a row came to nothing, the last on {', '.join(nodes)}"
            on_jobs.give_up(out, job, Move.HOLD, why)
    elif (
        end.outcome == "yielded"
        and spec.retries_preemption is not None
        and job.preemptions > spec.retries_preemption
    ):
        on_jobs.fail(out, job, _limit_reached("it was preempted", job.preemptions, "retries_preemption"))


def _limit_reached(what: str, times: int, limit: str) -> str:
    return f"{what} {times} time{'s' if times > 1 else ''} ({limit} = {times - 1})"


def _ending(end: Exit) -> str:
    """How an attempt failed. What its log says is for those alone who may read that."""
    last = end.detail.rstrip().rpartition("\n")[2]
    if end.code == COULD_NOT_START and last.startswith(
        "[gavel: "
    ):  # a line of the agent's, none of the job's
        return "could not be started, its log says why"
    return _exit_words(end.code)


def _exit_words(code: int) -> str:
    """An exit code in words; negative ones are signals, and so are those above 128 of a shell."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:  # no signal, or one without a name
        return f"exited with code {code}"
    often = " (often: out of memory)" if number == signal.SIGKILL else ""
    return f"was killed by {name}{often}" if code < 0 else f"exited with code {code}: {name}{often}"


def _lost(out: Outcome, holding: Holding) -> Exit:
    """The exit nobody reported: back to the last checkpoint."""
    job = out.state.jobs[holding.lease.job]
    if holding.started_s is None:  # nobody knows of any process: that is no failure of a node
        return Exit(holding.lease.id, "yielded", job.steps_done, job.steps_saved, 0.0, 0.0)
    until_s = out.now_s  # at most to the end that the node knew of: nobody hears whether it stopped before
    if holding.stop_by_s is not None:
        until_s = min(until_s, holding.stop_by_s - out.state.settings.lease_margin_s)
    ran_s = max(until_s - holding.started_s, 0.0)
    return Exit(holding.lease.id, "node_failed", job.steps_saved, job.steps_saved, holding.ran_s, ran_s)


def on_silent(out: Outcome, message: NodeSilent) -> None:
    """Unreachable is not dead: what runs there runs to the end of its lease, and nothing new goes there."""
    state = out.state
    node = state.nodes.get(message.node)
    if node is None or node.state in (NodeState.SILENT, NodeState.LOST):
        return
    out.fact(NodeMoved(node=message.node, state=NodeState.SILENT, why="the link is gone"))
    for holding in state.on_node(message.node):
        on_jobs.recall(out, holding.lease.id, GONE)
    for name in sorted({lease for gpu in node.every_gpu for lease in state.claims.get(gpu, ())}, key=int):
        on_jobs.recall(out, name, GONE)
    if not state.on_node(message.node):  # no lease will lapse there
        out.fact(NodeMoved(node=message.node, state=NodeState.LOST, why="nothing ran there"))
    out.leases_stop = True
    on_rounds.kick(out)


def lapse(out: Outcome) -> None:
    """Leases that nobody will report on any more are over."""
    state = out.state
    silent = [name for name, node in state.nodes.items() if node.state is SILENT]
    if not silent and len(state.leases) == len(state.held):
        return  # none is ending any more: all that were have been confirmed
    over = [h for h in state.leases.values() if h.stop_by_s is not None and h.stop_by_s <= out.now_s]
    for holding in sorted(over, key=lambda h: int(h.lease.id)):
        if holding.lease.id in state.leases:
            _close(out, holding, _lost(out, holding), nodes_of(holding.lease.gpus), lapsed=True)
    for name in sorted(silent):
        if not state.on_node(name):
            out.fact(NodeMoved(node=name, state=NodeState.LOST, why="its leases have lapsed"))
    out.leases_stop = True
    out.wants_review = True
    on_rounds.kick(out)
