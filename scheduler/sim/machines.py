"""All machines of a simulated cluster: leases in, reports out, at the rates of the physics.

Rules:
- every node runs a real agent core; what is simulated is the machine under it;
- processes start at once, then the job takes its restart time, then it steps; figures are exact, not sampled;
- checkpoints lie on a disk that all nodes share, and only the newest attempt of a job may write its own;
- nothing here reads the scheduler's state, and nothing happens unless it was due: same calls, same answers;
- what a node says at one instant is one report.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Message, NodeSilent
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import GpuId, Lease
from scheduler.sim.gang import GATHERING, GONE, RESTARTING, SAVING, STEPPING, Gang
from scheduler.sim.node import Node
from scheduler.sim.physics import CODE_FAULT, CODE_NO_RATE, Physics
from scheduler.sim.wakes import Wakes
from worker_agent.orders import (
    Action,
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
    SayHello,
    SignalLeader,
    StartProcess,
    Tick,
    Token,
)

INF = math.inf
TICK, UP, DOWN = Tick(), LinkUp(), LinkDown()


class Machines:
    """The cluster as it really is. Every call that takes `now_s` answers with what the nodes say at that instant."""

    def __init__(
        self,
        physics: Physics,
        *,
        report_interval_s: float = 3600.0,
        limits: Limits | None = None,
        silence_s: float = 0.0,
    ) -> None:
        """`silence_s`: how long a link is gone before the scheduler learns of it. `limits`: of the agents."""
        self.physics = physics
        # by default late by no more than it takes for a renewal at the very end of a lease to come first
        self.limits = limits or Limits(report_interval_s=report_interval_s, late_s=1e-3)
        self.silence_s = silence_s
        self.nodes: dict[str, Node] = {}
        self.gangs: dict[str, Gang] = {}  # by lease
        self.saved: dict[str, tuple[Token, float]] = {}  # the shared disk: steps in the job's checkpoint
        self._stepping: dict[GpuId, list[Gang]] = {}  # by place: one, or two that are packed
        self._due: list[tuple[float, int, int, Gang]] = []
        self._wakes = Wakes()
        self._silences: list[tuple[float, str, int]] = []
        self._numbers = 0
        self._todo: deque[tuple[Node, Event]] = deque()
        self._said: list[Message] = []
        self._news: dict[Node, None] = {}  # whose agents have something to report

    # --------------------------------------------------------------------------------------- what the world does

    def join(self, now_s: float, spec: NodeSpec) -> list[Message]:
        """A new node, or one that had left."""
        if spec.name in self.nodes and self.nodes[spec.name].up:
            raise ValueError(f"node {spec.name!r} is there already")
        self.nodes[spec.name] = node = Node(spec, self.limits)
        self._todo.append((node, UP))
        return self._flush(now_s)

    def deliver(self, now_s: float, effect: SendLeases | RenewLeases) -> list[Message]:
        """Leases arrive. A node that is down or cut off gets nothing."""
        nodes = self.nodes
        if isinstance(effect, RenewLeases):
            epoch, number, ends_s = effect.epoch, effect.round_number, effect.ends_s
            for name, generation in effect.generations.items():
                node = nodes.get(name)
                if node is None or not node.reachable:
                    continue
                if node.core.renew(epoch, generation, number, ends_s):
                    self._news[node] = None
        else:
            node = nodes.get(effect.node)
            if node is None or not node.reachable:
                return []
            self._todo.append((node, node.desired(effect)))
        return self._flush(now_s)

    def next_s(self) -> float:
        """When something is due; inf when nothing is."""
        due = self._due
        while due and due[0][2] != due[0][3].version:
            heappop(due)
        first_s = due[0][0] if due else INF
        while self._silences and self._silences[0][2] != self.nodes[self._silences[0][1]].unlinked:
            heappop(self._silences)
        if self._silences and self._silences[0][0] < first_s:
            first_s = self._silences[0][0]
        return min(first_s, self._wakes.next_s())

    def advance(self, now_s: float) -> list[Message]:
        """Let everything happen that is due at or before now, each at its own time."""
        while (at_s := self.next_s()) <= now_s:
            due = self._due
            if due and due[0][0] == at_s:
                self._on_due(at_s, heappop(due)[3])
            elif self._silences and self._silences[0][0] == at_s:
                self._said.append(NodeSilent(node=heappop(self._silences)[1]))
            else:
                self._wake(at_s)
            self._work(at_s)
        return self._flush(now_s)

    # -------------------------------------------------------------------------------------------------- faults

    def crash(self, now_s: float, name: str) -> list[Message]:
        """A node dies, and with it every job that has ranks there. It says nothing; other nodes of its gangs do."""
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
        """Its jobs are told to save and leave: those whose checkpoint takes at least so long."""
        gangs = [gang for gang in self.gangs.values() if name in gang.present]
        for gang in gangs:
            if gang.truth.checkpoint_s >= checkpoint_s:
                self._ask(now_s, gang)
        return self._flush(now_s)

    def repair(self, now_s: float, name: str) -> list[Message]:
        """A node that died is back, empty."""
        node = self.nodes[name]
        if node.up:
            return []
        node.reboot(self.limits)
        return self._link(now_s, node)

    def cut(self, now_s: float, name: str) -> list[Message]:
        """Scheduler and node do not reach each other any more; jobs go on until their leases end."""
        node = self.nodes[name]
        if node.reachable:
            self._unlink(now_s, node)
            self._todo.append((node, DOWN))
        return self._flush(now_s)

    def mend(self, now_s: float, name: str) -> list[Message]:
        """They reach each other again."""
        node = self.nodes[name]
        return self._link(now_s, node) if node.up and not node.reachable else []

    def _link(self, now_s: float, node: Node) -> list[Message]:
        node.up = node.reachable = True
        node.unlinked += 1
        self._todo.append((node, UP))
        return self._flush(now_s)

    def _unlink(self, now_s: float, node: Node) -> None:
        if node.reachable:
            node.reachable = False
            node.unlinked += 1
            heappush(self._silences, (now_s + self.silence_s, node.spec.name, node.unlinked))

    # -------------------------------------------------------------------------------------------------- agents

    def _wake(self, now_s: float) -> None:
        """Give a tick to every agent that needs one now; before a report, their jobs say how far they are."""
        for node in self._wakes.take(now_s):
            core = node.core
            if core.report_s <= now_s:
                for lease in core.running:
                    gang = self.gangs.get(lease)
                    if gang is not None:
                        gang.settle(now_s)
                        core.progressed(Progressed(lease, gang.steps, gang.saved, gang.stepping_s))
            self._todo.append((node, TICK))

    def _work(self, now_s: float) -> None:
        """Tell agents what happened, and do what they want done about it, until nothing more happens now."""
        todo = self._todo
        while todo:
            node, event = todo.popleft()
            core = node.core
            for action in core.hear(now_s, event):
                self._act(now_s, node, action)
            if core.armed_s < node.wake_s:
                self._wakes.put(max(core.armed_s, now_s), node)
            if core.news:
                self._news[node] = None

    def _act(self, now_s: float, node: Node, action: Action) -> None:
        if isinstance(action, StartProcess):
            self._start(now_s, node, node.lease(action.order))
        elif isinstance(action, SayHello):
            self._said.append(node.hello(action))
        elif isinstance(action, (AskToStop, SignalLeader, KillGroup)):
            gang = self.gangs.get(action.lease)
            if gang is None:
                return
            if isinstance(action, KillGroup):
                gang.settle(now_s)
                self._end(now_s, gang, "yielded")
            else:
                self._ask(now_s, gang)

    def _flush(self, now_s: float) -> list[Message]:
        """Finish this instant, and collect what was said in it."""
        if self._todo:
            self._work(now_s)
        if not (self._news or self._said):
            return []
        said, self._said = self._said, []
        said.extend([node.report() for node in self._news])
        self._news.clear()
        return said

    # --------------------------------------------------------------------------------------------------- gangs

    def _start(self, now_s: float, node: Node, lease: Lease) -> None:
        """A node starts its ranks; the last one completes the gang."""
        gang = self.gangs.get(lease.id)
        if gang is None:
            gang = Gang(lease, self.physics.truth(lease.job), node.spec.worker_type)
            token, saved = self.saved.get(lease.job, ((0, 0), 0.0))
            self.saved[lease.job] = (max(token, (lease.epoch, lease.attempt)), saved)
            gang.steps = gang.saved = saved
            self.gangs[lease.id] = gang
        gang.present[node.spec.name] = now_s
        self._todo.append((node, ProcessStarted(lease.id)))
        if len(gang.present) < len(gang.nodes) or gang.doing is not GATHERING:
            return
        if len(gang.nodes) > 1:
            width = max(self.nodes[name].spec.gpus for name in gang.nodes)
            gang.consolidated = len(gang.nodes) == -(-len(lease.gpus) // width)
        gang.steps = gang.saved = self.saved[lease.job][1]
        if gang.truth.restart_s > 0:
            gang.doing = RESTARTING
            self._due_at(gang, now_s + gang.truth.restart_s)
        else:
            self._step(now_s, gang)

    def _step(self, now_s: float, gang: Gang) -> None:
        """It begins to do steps; whoever is on the same GPUs feels it."""
        gang.doing = STEPPING
        gang.since_s = now_s
        here = self._stepping.setdefault(gang.place, [])
        here.append(gang)
        self._pace(now_s, gang)
        if len(here) > 1 and gang.doing is STEPPING:
            self._pace(now_s, here[0])

    def _pace(self, now_s: float, gang: Gang) -> None:
        """Its rate from now on. Where it is 0 the job does not fit, and fails."""
        gang.settle(now_s)
        here = self._stepping[gang.place]
        beside = None
        if len(here) > 1:
            beside = here[0].lease if here[1] is gang else here[1].lease
        gang.rate = self.physics.rate(gang.lease, gang.worker_type, gang.consolidated, beside)
        if gang.rate > 0.0:
            self._due_at(gang, gang.ends_itself_s())
        else:
            self._end(now_s, gang, "failed", CODE_NO_RATE)

    def _ask(self, now_s: float, gang: Gang) -> None:
        """It is asked to stop: it saves first, if it has anything to save."""
        if gang.truth.ignores_stop:
            return
        if gang.doing is STEPPING:
            gang.settle(now_s)
            if gang.has_run_out():
                self._run_out(now_s, gang)
                return
            self._leave_place(now_s, gang)
            gang.doing = SAVING
            if gang.truth.checkpoint_s > 0:
                self._due_at(gang, now_s + gang.truth.checkpoint_s)
            else:
                self._have_saved(now_s, gang)
        elif gang.doing is not SAVING:
            self._end(now_s, gang, "yielded")

    def _on_due(self, now_s: float, gang: Gang) -> None:
        if gang.doing is RESTARTING:
            self._step(now_s, gang)
        elif gang.doing is SAVING:
            self._have_saved(now_s, gang)
        else:
            gang.settle(now_s)
            self._run_out(now_s, gang)

    def _run_out(self, now_s: float, gang: Gang) -> None:
        """It did its last step."""
        gang.steps = gang.runs_to
        if gang.truth.fails_at_steps < gang.truth.steps_total:
            self._end(now_s, gang, "failed", CODE_FAULT)
        else:
            gang.saved = gang.steps
            self._end(now_s, gang, "finished")

    def _have_saved(self, now_s: float, gang: Gang) -> None:
        gang.saved = gang.steps
        self._end(now_s, gang, "yielded")

    def _leave_place(self, now_s: float, gang: Gang) -> None:
        """It does no more steps; whoever is on the same GPUs goes on alone."""
        here = self._stepping[gang.place]
        here.remove(gang)
        if here:
            self._pace(now_s, here[0])
        else:
            del self._stepping[gang.place]

    def _end(self, now_s: float, gang: Gang, outcome: Outcome, code: int = 0) -> None:
        """All its processes end, on every node that has any."""
        was, gang.doing = gang.doing, GONE
        gang.version += 1
        del self.gangs[gang.lease.id]
        lease = gang.lease
        token = (lease.epoch, lease.attempt)
        if token >= self.saved[lease.job][0]:
            self.saved[lease.job] = (token, gang.saved)
        for name, since_s in gang.present.items():
            ran_s = now_s - since_s
            exited = ProcessExited(lease.id, outcome, gang.steps, gang.saved, gang.stepping_s, ran_s, code)
            self._todo.append((self.nodes[name], exited))
        if was is STEPPING:
            self._leave_place(now_s, gang)

    def _due_at(self, gang: Gang, at_s: float) -> None:
        gang.version += 1
        if at_s < INF:
            self._numbers += 1
            heappush(self._due, (at_s, self._numbers, gang.version, gang))
