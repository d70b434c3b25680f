"""All machines of a simulated cluster: leases go in, reports come out, at the rates of the physics.

Rules:
- every node runs a real agent core; only the machine on which the agent runs is simulated;
- processes start at once, then the job takes its restart time, then it steps; steps are computed exactly, not sampled;
- checkpoints lie on a disk that all nodes share, and only the newest attempt of a job may write its checkpoint;
- the same calls give the same answers: nothing here reads the scheduler's state, and each event has its own time;
- a node sends one report for everything that happens on it at one instant.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Message, NodeSilent
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import Lease
from scheduler.sim.engine.gang import GATHERING, GONE, RESTARTING, SAVING, STEPPING, Gang
from scheduler.sim.engine.node import Node
from scheduler.sim.engine.physics import CODE_FAULT, CODE_NO_RATE, Physics
from scheduler.sim.engine.places import Places
from scheduler.sim.engine.wakes import Wakes
from worker_agent.core.core import AgentCore
from worker_agent.core.messages import (
    AskToStop,
    Event,
    KillGroup,
    Limits,
    LinkDown,
    LinkUp,
    Outcome,
    ProcessExited,
    ProcessStarted,
    Progressed,
    SendHello,
    SignalLeader,
    StartProcess,
    Tick,
    Token,
)

INF = math.inf
TICK, UP, DOWN = Tick(), LinkUp(), LinkDown()
# The checkpoint of a job that has never saved: the token of its writer, and its steps.
NEVER: tuple[Token, float] = ((0, 0), 0.0)
# How many void entries may be on the heap of due events before they are removed.
VOID_MAX = 64


def agent_limits(report_interval_s: float, ask_s: float = Limits().ask_s) -> Limits:
    """Return the time limits of simulated agents.

    `late_s` is tiny: a renewal that arrives at the very end of a lease counts, but a later renewal does not. Progress
    is computed only when a report is due, so `first_step_s` has no use here.
    """
    return Limits(report_interval_s=report_interval_s, late_s=1e-3, ask_s=ask_s, first_step_s=INF)


class Machines:
    """The true state of the cluster. Calls with a `now_s` return the messages that nodes send at that time."""

    def __init__(
        self,
        physics: Physics,
        *,
        report_interval_s: float = 3600.0,
        limits: Limits | None = None,
        silence_s: float = 0.0,
    ) -> None:
        """`silence_s`: how long a link is gone before the scheduler gets NodeSilent. `limits`: those of all agents."""
        self.physics = physics
        self.limits = limits or agent_limits(report_interval_s)
        self.silence_s = silence_s
        self.nodes: dict[str, Node] = {}
        # Gangs by lease.
        self.gangs: dict[str, Gang] = {}
        # The shared disk: the writer's token and the steps of each job's checkpoint.
        self.saved: dict[str, tuple[Token, float]] = {}
        self._places = Places(physics, self.nodes)
        # A heap of due events: the time, a number for ties, the gang's version when the event was set, and the gang.
        self._due: list[tuple[float, int, int, Gang]] = []
        self._wakes = Wakes()
        # A heap of NodeSilent messages to send: the time, the node, and its `link_changes` when the link was lost.
        self._silences: list[tuple[float, str, int]] = []
        # The last number for ties.
        self._numbers = 0
        # The exits that agents have yet to handle.
        self._exits: deque[tuple[Node, ProcessExited]] = deque()
        self._messages: list[Message] = []
        # The nodes with something to report: a dict, because sets keep no order.
        self._news: dict[Node, None] = {}

    # ------------------------------------------------------------------------------------------ for the world

    def join(self, now_s: float, spec: NodeSpec) -> list[Message]:
        """Let a node join that is new, or that comes back after it left."""
        if spec.name in self.nodes and self.nodes[spec.name].up:
            raise ValueError(f"node {spec.name!r} has joined already")
        self.nodes[spec.name] = node = Node(spec, self.limits)
        self._pass(now_s, node, UP)
        return self._flush(now_s)

    def deliver(self, now_s: float, effect: SendLeases | RenewLeases) -> list[Message]:
        """Deliver leases to their nodes. A node that is down or cut off gets nothing."""
        nodes = self.nodes
        if isinstance(effect, SendLeases):
            node = nodes.get(effect.node)
            if node is not None and node.reachable:
                self._pass(now_s, node, node.desired(effect))
        else:
            reached = [
                (node, generation)
                for name, generation in effect.generations.items()
                if (node := nodes.get(name)) is not None and node.reachable
            ]
            sets = [(node.core, generation) for node, generation in reached]
            AgentCore.renew_all(sets, effect.epoch, effect.round_number, effect.ends_s)
            # A renewal causes no action, and no earlier Tick.
            for node, _ in reached:
                if node.core.news:
                    self._news[node] = None
        return self._flush(now_s)

    def next_s(self) -> float:
        """Return when something is due; inf if nothing is."""
        first_s, due, silences = self._wakes.next_s(), self._due, self._silences
        while due and due[0][2] != due[0][3].version:
            heappop(due)
        if due and due[0][0] < first_s:
            first_s = due[0][0]
        while silences and silences[0][2] != self.nodes[silences[0][1]].link_changes:
            heappop(silences)
        if silences and silences[0][0] < first_s:
            first_s = silences[0][0]
        return first_s

    def advance(self, now_s: float) -> list[Message]:
        """Process everything that is due by now, each event at its own time."""
        while (at_s := self.next_s()) <= now_s:
            due = self._due
            if due and due[0][0] == at_s:
                self._on_due(at_s, heappop(due)[3])
            elif self._silences and self._silences[0][0] == at_s:
                self._messages.append(NodeSilent(node=heappop(self._silences)[1]))
            else:
                self._wake(at_s)
            self._pass_exits(at_s)
        return self._flush(now_s)

    # -------------------------------------------------------------------------------------------------- faults

    def crash(self, now_s: float, name: str) -> list[Message]:
        """Crash a node and every job with ranks on it. Only the other nodes of these jobs report their ends."""
        node = self.nodes[name]
        if not node.up:
            return []
        self._unlink(now_s, node)
        node.up = False
        node.wake_s = INF
        for gang in [gang for gang in self.gangs.values() if name in gang.present]:
            gang.settle(now_s)
            del gang.present[name]
            self._end(now_s, gang, "node_failed")
        return self._flush(now_s)

    def vacate(self, now_s: float, name: str, checkpoint_s: float) -> list[Message]:
        """Ask the jobs on a node to save and stop, if their checkpoints take at least `checkpoint_s`."""
        gangs = [gang for gang in self.gangs.values() if name in gang.present]
        for gang in gangs:
            if gang.truth.checkpoint_s >= checkpoint_s:
                self._request_stop(now_s, gang)
        return self._flush(now_s)

    def repair(self, now_s: float, name: str) -> list[Message]:
        """Bring a crashed node back, without processes."""
        node = self.nodes[name]
        if node.up:
            return []
        node.reboot(self.limits)
        return self._link(now_s, node)

    def cut(self, now_s: float, name: str) -> list[Message]:
        """Cut the link between a node and the scheduler. Its jobs continue until their leases end."""
        node = self.nodes[name]
        if node.reachable:
            self._unlink(now_s, node)
            self._pass(now_s, node, DOWN)
        return self._flush(now_s)

    def mend(self, now_s: float, name: str) -> list[Message]:
        """Restore the link of a node that was cut off."""
        node = self.nodes[name]
        return self._link(now_s, node) if node.up and not node.reachable else []

    def _link(self, now_s: float, node: Node) -> list[Message]:
        node.up = node.reachable = True
        node.link_changes += 1
        self._pass(now_s, node, UP)
        return self._flush(now_s)

    def _unlink(self, now_s: float, node: Node) -> None:
        if node.reachable:
            node.reachable = False
            node.link_changes += 1
            heappush(self._silences, (now_s + self.silence_s, node.spec.name, node.link_changes))

    # -------------------------------------------------------------------------------------------------- agents

    def _wake(self, now_s: float) -> None:
        """Give a Tick to every agent that needs one now. If its report is due, pass the progress of its jobs first."""
        woken = self._wakes.take(now_s)
        for node in woken:
            core = node.core
            if core.report_s <= now_s:
                for lease in core.runs:
                    gang = self.gangs.get(lease)
                    if gang is not None:
                        gang.settle(now_s)
                        # Progress causes no action. The Tick below makes the agent report it.
                        core.handle(now_s, Progressed(lease, gang.steps, gang.saved, gang.stepping_s))
        for node in woken:
            self._pass(now_s, node, TICK)

    def _pass(self, now_s: float, node: Node, event: Event) -> None:
        """Pass an event to a node's agent, and carry out the agent's actions.

        Also record when the agent needs its next Tick, and whether it has news.
        """
        core = node.core
        for action in core.handle(now_s, event):
            if isinstance(action, StartProcess):
                self._start(now_s, node, node.lease(action.order))
            elif isinstance(action, (AskToStop, SignalLeader)):
                gang = self.gangs.get(action.lease)
                if gang is not None:
                    self._request_stop(now_s, gang)
            elif isinstance(action, KillGroup):
                gang = self.gangs.get(action.lease)
                if gang is not None:
                    gang.settle(now_s)
                    self._end(now_s, gang, "yielded")
            elif isinstance(action, SendHello):
                self._messages.append(node.hello(action))
        if core.tick_s < node.wake_s:
            self._wakes.put(max(core.tick_s, now_s), node)
        if core.news:
            self._news[node] = None

    def _pass_exits(self, now_s: float) -> None:
        """Pass all exits to their agents, including further exits that this causes."""
        exits = self._exits
        while exits:
            node, exited = exits.popleft()
            self._pass(now_s, node, exited)

    def _flush(self, now_s: float) -> list[Message]:
        """Finish this instant, and return the messages that nodes send in it."""
        if self._exits:
            self._pass_exits(now_s)
        if not (self._news or self._messages):
            return []
        messages, self._messages = self._messages, []
        for node in self._news:
            messages.append(node.report())
        self._news.clear()
        return messages

    # --------------------------------------------------------------------------------------------------- gangs

    def _start(self, now_s: float, node: Node, lease: Lease) -> None:
        """Start the ranks of a lease on one node. When they run on all its nodes, the job's restart time begins."""
        gang = self.gangs.get(lease.id)
        if gang is None:
            token, saved = self.saved.get(lease.job, NEVER)
            gang = Gang(lease, self.physics.truth(lease.job), node.spec.worker_type, saved)
            self.saved[lease.job] = (max(token, gang.token), saved)
            self.gangs[lease.id] = gang
        gang.present[node.spec.name] = now_s
        self._pass(now_s, node, ProcessStarted(lease.id))
        if len(lease.gpus) > 1:
            if len(gang.present) < len(gang.nodes) or gang.phase is not GATHERING:
                return
            width = max(self.nodes[name].spec.gpus for name in gang.nodes)
            gang.consolidated = len(gang.nodes) == -(-len(lease.gpus) // width)
            gang.steps = gang.saved = self.saved[lease.job][1]
        if gang.truth.restart_s > 0:
            gang.phase = RESTARTING
            self._due_at(gang, now_s + gang.truth.restart_s)
        else:
            self._begin_steps(now_s, gang)

    def _begin_steps(self, now_s: float, gang: Gang) -> None:
        """Let the gang begin its steps. Those that share GPUs or CPUs with it get the rates that they have then."""
        gang.phase = STEPPING
        gang.since_s = now_s
        others = self._places.enter(gang)
        self._set_rate(now_s, gang)
        if gang.phase is STEPPING:
            self._set_rates(now_s, others)

    def _set_rates(self, now_s: float, gangs: Sequence[Gang]) -> None:
        for gang in gangs:
            # The new rate of one gang may have ended another one.
            if gang.phase is STEPPING:
                gang.settle(now_s)
                self._set_rate(now_s, gang)

    def _set_rate(self, now_s: float, gang: Gang) -> None:
        """Set the rate of a gang that is settled up to now. If the rate is 0, the job does not fit, and fails."""
        gang.rate = self._places.rate(gang)
        if gang.rate > 0.0:
            self._due_at(gang, gang.last_step_s())
        else:
            self._end(now_s, gang, "failed", CODE_NO_RATE)

    def _request_stop(self, now_s: float, gang: Gang) -> None:
        """Ask a gang to stop. A gang that is stepping saves first."""
        if gang.truth.ignores_stop:
            return
        if gang.phase is STEPPING:
            gang.settle(now_s)
            if gang.is_at_last_step():
                self._end_at_last_step(now_s, gang)
                return
            self._leave_place(now_s, gang)
            gang.phase = SAVING
            if gang.truth.checkpoint_s > 0:
                self._due_at(gang, now_s + gang.truth.checkpoint_s)
            else:
                self._end_saved(now_s, gang)
        elif gang.phase is not SAVING:
            self._end(now_s, gang, "yielded")

    def _on_due(self, now_s: float, gang: Gang) -> None:
        if gang.phase is RESTARTING:
            self._begin_steps(now_s, gang)
        elif gang.phase is SAVING:
            self._end_saved(now_s, gang)
        else:
            gang.settle(now_s)
            self._end_at_last_step(now_s, gang)

    def _end_at_last_step(self, now_s: float, gang: Gang) -> None:
        """End a gang that has done its last step."""
        gang.steps = gang.runs_to
        if gang.truth.fails_at_steps < gang.truth.steps_total:
            self._end(now_s, gang, "failed", CODE_FAULT)
        else:
            gang.saved = gang.steps
            self._end(now_s, gang, "finished")

    def _end_saved(self, now_s: float, gang: Gang) -> None:
        gang.saved = gang.steps
        self._end(now_s, gang, "yielded")

    def _leave_place(self, now_s: float, gang: Gang) -> None:
        """Stop the steps of a gang. Those that shared GPUs or CPUs with it get the rates that they have without it."""
        self._set_rates(now_s, self._places.leave(gang))

    def _end(self, now_s: float, gang: Gang, outcome: Outcome, code: int = 0) -> None:
        """End all processes of a gang, on every node that has any."""
        phase_before, gang.phase = gang.phase, GONE
        gang.version += 1
        lease = gang.lease
        del self.gangs[lease.id]
        if gang.token >= self.saved[lease.job][0]:
            self.saved[lease.job] = (gang.token, gang.saved)
        for name, since_s in gang.present.items():
            ran_s = now_s - since_s
            exited = ProcessExited(lease.id, outcome, gang.steps, gang.saved, gang.stepping_s, ran_s, code)
            self._exits.append((self.nodes[name], exited))
        if phase_before is STEPPING:
            self._leave_place(now_s, gang)

    def _due_at(self, gang: Gang, at_s: float) -> None:
        """Set the time of a gang's next event. This replaces the time set before."""
        gang.version += 1
        if at_s < INF:
            due = self._due
            # Most entries are void by now, because their gangs stopped long ago.
            if len(due) > 2 * len(self.gangs) + VOID_MAX:
                due[:] = [entry for entry in due if entry[2] == entry[3].version]
                heapify(due)
            self._numbers += 1
            heappush(due, (at_s, self._numbers, gang.version, gang))
