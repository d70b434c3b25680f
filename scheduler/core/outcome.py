"""The outcome of handling messages: facts, which are applied as they are added, and effects."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.apply import apply
from scheduler.core.effects import Effect, RefuseNode, RenewLeases, Reply, SendLeases, WakeAt
from scheduler.core.facts import Fact, LeasesStarted
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import Node, NodeState
from scheduler.model.errors import InvalidSpec, LimitReached, Refused
from scheduler.model.jobs import Job
from scheduler.model.lease import STOPPING, Bundle, Holding, Lease, nodes_of
from scheduler.model.measured import pool_key
from scheduler.model.node_losses import mtbf_s

_UNREACHABLE = frozenset({NodeState.SILENT, NodeState.LOST})


class Outcome:
    """The facts and effects of one batch of messages. The facts become one atomic record of the journal."""

    __slots__ = (
        *("_started", "_dirty", "_renewed", "effects", "facts", "leases_stop", "now_s", "state", "untold"),
        *("kicked", "wants_review"),
    )

    def __init__(self, state: SchedulerState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.facts: list[Fact] = []
        self.effects: list[Effect] = []
        # Nodes to which their set of leases has to be sent.
        self._dirty: dict[str, None] = {}
        self._renewed = False
        # Leases reported as running, for which no fact has been added yet.
        self._started: dict[str, None] = {}
        # Whether `on_rounds.kick` was called for a report since the last message that was not a report.
        self.kicked = False
        # Whether to review limits and dependencies once, after all messages.
        self.wants_review = False
        # Leases that have not been sent to any node yet.
        self.untold: set[str] = set()
        # Whether leases began to stop, so that the earliest lapse may have changed.
        self.leases_stop = False

    def fact(self, fact: Fact) -> None:
        """Add a fact and apply it to the state."""
        if self._started:
            self.settle_starts()
        # The fact is appended before it is applied: so if there are no facts, the state is surely unchanged, even if
        # `apply` raised.
        self.facts.append(fact)
        apply(self.state, self.now_s, fact)

    def note_start(self, lease: str) -> None:
        """Note that a lease runs. Consecutive starts become one fact, because many leases start at a boundary."""
        self._started[lease] = None

    def settle_reports(self) -> None:
        """End a series of reports: add the fact about their starts, and let the next report call `on_rounds.kick`."""
        self.settle_starts()
        self.kicked = False

    def settle_starts(self) -> None:
        """Add the fact for all starts noted so far. If limits of jobs begin to count, set the timer for a review."""
        if not self._started:
            return
        leases = tuple(self._started)
        self._started.clear()
        self.fact(LeasesStarted(leases=leases))
        state = self.state
        if state.to_review and any(state.leases[name].lease.job in state.to_review for name in leases):
            self.wake(self.now_s, "review")

    def effect(self, effect: Effect) -> None:
        """Add an effect, to be carried out once the facts are durable."""
        self.effects.append(effect)

    def wake(self, at_s: float, timer: str) -> None:
        """Set a timer: the message Woke, with the timer's name, arrives at this time."""
        self.effects.append(WakeAt(at_s, timer))

    def reply(self, call: str, **result: object) -> None:
        """Answer a call. An empty `call` needs no answer."""
        if call:
            self.effects.append(Reply(call, result))

    def refuse(self, call: str, error: Refused | InvalidSpec) -> None:
        """Answer a call with an error."""
        field = {"field": error.field} if isinstance(error, InvalidSpec | LimitReached) else {}
        if call:
            self.effects.append(Reply(call, field, str(error), _code_of(error)))

    def refuse_node(self, node: str, error: Refused | InvalidSpec) -> None:
        """Refuse to let a node join."""
        self.effects.append(RefuseNode(node, str(error), _code_of(error)))

    def resend(self, nodes: Iterable[str]) -> None:
        """Send these nodes their sets of leases at the end of the batch."""
        for name in nodes:
            self._dirty[name] = None

    def renew(self) -> None:
        """At the end of the batch, renew all leases that did not change, up to the end of the round."""
        self._renewed = True

    def send_leases(self) -> None:
        """Add one SendLeases for each node whose set has to be sent, and one RenewLeases for all others."""
        state, nodes, changed = self.state, self.state.nodes, self._dirty
        for name in changed:
            node = nodes.get(name)
            if node is not None and node.state not in _UNREACHABLE:
                self.effects.append(_set_of(state, node))
        if self._renewed:
            in_use = state.nodes_in_use()
            generations = {name: nodes[name].generation for name in in_use if name not in changed}
            self.effects.append(RenewLeases(state.epoch, state.round.number, state.round.ends_s, generations))
        changed.clear()
        self._renewed = False

    def resend_for(self, holding: Holding) -> None:
        """Send the nodes of this lease their sets of leases at the end of the batch."""
        for name in nodes_of(holding.lease.gpus):
            self._dirty[name] = None


def _code_of(error: Refused | InvalidSpec) -> str:
    return error.code if isinstance(error, Refused) else "invalid"


def _set_of(state: SchedulerState, node: Node) -> SendLeases:
    """Return the current set of leases of a node, with the reasons of those that are ending."""
    leases, last, why_ended = [], [], []
    extra_save, mtbf, workers = {}, {}, {}
    lossy = {kind for kind, losses in state.losses.items() if losses.losses}
    for holding in state.on_node(node.spec.name):
        if node.spec.name in holding.exited:
            # The ranks here have exited, and others of the gang have not. The node would report the exit again.
            continue
        if holding.phase is STOPPING:
            name = holding.lease.id
            why_ended.append((name, holding.why))
            if state.lease_end_s(holding) <= state.now_s:
                continue
            last.append(name)
        leases.append(as_sent(state, holding))
        name, bundle = holding.lease.id, holding.bundle
        if holding.extra_save_s:
            extra_save[name] = holding.extra_save_s
        if bundle.worker_type in lossy:
            mtbf[name] = mtbf_s(state.losses, bundle.worker_type, bundle.gpus)
        if count := useful_workers_of(state, state.jobs[holding.lease.job], bundle):
            workers[name] = count
    of_node = node.spec.name, state.epoch, node.generation
    return SendLeases(*of_node, tuple(leases), tuple(last), tuple(why_ended), extra_save, mtbf, workers)


def useful_workers_of(state: SchedulerState, job: Job, bundle: Bundle) -> int:
    """Return the loader workers of a rank with which a job would not wait for data here; 0 if that is unknown."""
    book = state.measured
    return (
        book.workers(job.id, pool_key(job, bundle.worker_type, bundle.gpus)) if book.pools or book.jobs else 0
    )


def as_sent(state: SchedulerState, holding: Holding) -> Lease:
    """Return a lease as it is sent to a node, with its current end and bundle."""
    lease, number, ends_s = holding.lease, state.round.number, state.lease_end_s(holding)
    if lease.round_number == number and lease.ends_s == ends_s and lease.bundle is holding.bundle:
        return lease  # as it was granted
    return Lease(
        lease.id,
        lease.job,
        holding.bundle,
        lease.attempt,
        lease.epoch,
        lease.gpus,
        number,
        ends_s,
        lease.steps_max,
        lease.rendezvous,
    )
