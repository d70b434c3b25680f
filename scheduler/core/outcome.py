"""What handling one message comes to: facts, applied as they are found, and the effects that follow from them."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.apply import apply
from scheduler.core.effects import Effect, RefuseNode, RenewLeases, Reply, SendLeases, WakeAt
from scheduler.core.facts import Fact, LeasesStarted
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import Node, NodeState
from scheduler.model.errors import InvalidSpec, Refused
from scheduler.model.lease import STOPPING, Holding, Lease, nodes_of

_UNREACHABLE = frozenset({NodeState.SILENT, NodeState.LOST})


class Outcome:
    """Facts and effects of one message. Its facts are one atomic record of the journal."""

    __slots__ = (
        *("_begun", "_dirty", "_renewed", "effects", "facts", "leases_stop", "now_s", "state", "untold"),
        *("kicked", "wants_review"),
    )

    def __init__(self, state: SchedulerState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.facts: list[Fact] = []
        self.effects: list[Effect] = []
        self._dirty: dict[str, None] = {}  # nodes whose set of leases changed
        self._renewed = False
        self._begun: dict[str, None] = {}  # leases that run, of which there is no fact yet
        self.kicked = False  # the pulse knows of what was reported since the last message of another kind
        self.wants_review = False  # limits and dependencies are to be looked at, once for all messages
        self.untold: set[str] = set()  # leases that no node has been told of yet
        self.leases_stop = False  # the earliest lapse may have changed

    def fact(self, fact: Fact) -> None:
        """It has happened."""
        if self._begun:
            self.settle_starts()
        self.facts.append(fact)  # first: while there are no facts, the state is untouched, whatever raises
        apply(self.state, self.now_s, fact)

    def begun(self, lease: str) -> None:
        """It runs. A boundary starts many at once, so it is one fact for all that is said of starts in a row."""
        self._begun[lease] = None

    def settle_reports(self) -> None:
        """No more reports follow, or something else comes in between."""
        self.settle_starts()
        self.kicked = False

    def settle_starts(self) -> None:
        """What was said of starts is a fact now; limits that count running time start to count."""
        if not self._begun:
            return
        leases = tuple(self._begun)
        self._begun.clear()
        self.fact(LeasesStarted(leases=leases))
        state = self.state
        if state.watched and any(state.leases[name].lease.job in state.watched for name in leases):
            self.wake(self.now_s, "review")

    def effect(self, effect: Effect) -> None:
        """It is to be done, once the facts are durable."""
        self.effects.append(effect)

    def wake(self, at_s: float, what: str) -> None:
        """Send Woke(what) then."""
        self.effects.append(WakeAt(at_s, what))

    def reply(self, call: str, **result: object) -> None:
        """Answer a call, if someone waits for the answer."""
        if call:
            self.effects.append(Reply(call, result))

    def refuse(self, call: str, error: Refused | InvalidSpec) -> None:
        """Answer a call with what is wrong."""
        field = {"field": error.field} if isinstance(error, InvalidSpec) else {}
        if call:
            self.effects.append(Reply(call, field, str(error), _code_of(error)))

    def refuse_node(self, node: str, error: Refused | InvalidSpec) -> None:
        """Do not let a node join."""
        self.effects.append(RefuseNode(node, str(error), _code_of(error)))

    def dirty(self, nodes: Iterable[str]) -> None:
        """These nodes get their leases anew."""
        for name in nodes:
            self._dirty[name] = None

    def renew(self) -> None:
        """All leases that did not change go on to the end of the round."""
        self._renewed = True

    def send_leases(self) -> None:
        """One SendLeases for each node whose set changed, and one RenewLeases for all the others."""
        state, nodes, dirty = self.state, self.state.nodes, self._dirty
        for name in dirty:
            node = nodes.get(name)
            if node is not None and node.state not in _UNREACHABLE:
                self.effects.append(_set_of(state, node))
        if self._renewed:
            in_use = state.in_use()
            generations = {name: nodes[name].generation for name in in_use if name not in dirty}
            self.effects.append(RenewLeases(state.epoch, state.round.number, state.round.ends_s, generations))
        dirty.clear()
        self._renewed = False

    def touched(self, holding: Holding) -> None:
        """The nodes of this lease get their leases anew."""
        for name in nodes_of(holding.lease.gpus):
            self._dirty[name] = None


def _code_of(error: Refused | InvalidSpec) -> str:
    return error.code if isinstance(error, Refused) else "invalid"


def _set_of(state: SchedulerState, node: Node) -> SendLeases:
    """What a node should be carrying out now, and why leases end that it may still carry out."""
    leases, last, why_ended = [], [], []
    for holding in state.on_node(node.spec.name):
        if holding.phase is STOPPING:
            name = holding.lease.id
            why_ended.append((name, holding.why))
            if state.lease_end_s(holding) <= state.now_s:
                continue
            last.append(name)
        leases.append(as_sent(state, holding))
    return SendLeases(
        node.spec.name, state.epoch, node.generation, tuple(leases), tuple(last), tuple(why_ended)
    )


def as_sent(state: SchedulerState, holding: Holding) -> Lease:
    """The lease as a node sees it: with its present end and company."""
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
