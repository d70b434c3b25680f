"""The links to all agents: admission, messages in both directions, and silence.

    Hello → is the name free? → which nodes share its checkpoints? → the core admits the node → Welcome → its leases

Rules:
- a node has one link: a newer link of the same agent replaces it, but another agent is refused if the first answers;
- a report is confirmed, by Taken, when its consequences are durable;
- a link that is silent for too long is closed; the core then treats the node as silent, which does not mean dead;
- an agent that does not read delays no other agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import RefuseNode, RenewLeases, SendLeases
from scheduler.core.facts import Fact, NodeMoved, NodeRemoved
from scheduler.core.messages import NodeCommand, NodeSilent
from scheduler.live.agents import shared_storage
from scheduler.live.agents.gang_messages import go_to, ready_of
from scheduler.live.agents.gangs import Gangs, Go
from scheduler.live.agents.link import NodeLink
from scheduler.live.agents.outbox import Outbox
from scheduler.live.node_views import NodeDetails
from scheduler.live.pace import Pace
from scheduler.live.wire.agents import cache_changed_of, desired_to, hello_of, refusal_of, report_of
from scheduler.live.world import LiveWorld
from scheduler.model.cluster import NodeState
from scheduler.model.lease import Phase, nodes_of

log = logging.getLogger(__name__)
VERSION = version("gavel-scheduler")


class Links:
    """The links to all agents. This class carries out effects of the core, and is the `NodeSource` of the API."""

    def __init__(self, world: LiveWorld, pace: Pace | None = None) -> None:
        self.world, self.pace = world, pace or Pace()
        self.by_name: dict[str, NodeLink] = {}
        # Agents between Hello and Welcome.
        self._arriving: dict[str, NodeLink] = {}
        # The last view of nodes whose link is gone.
        self._last_views: dict[str, NodeDetails] = {}
        # Node → why the core refused its Hello.
        self._refusals: dict[str, str] = {}
        self._gangs = Gangs(self.pace.gang_s)
        self._stopping = False
        # Node without a link → the time at which it counts as silent.
        self._silent_at_s: dict[str, float] = {}
        # Node for whose link a reader of logs waits → the event that is set when the node has a link.
        self._linked: dict[str, asyncio.Event] = {}
        world.handlers |= {
            SendLeases: self.send_leases,
            RenewLeases: self.renew_leases,
            RefuseNode: self.refuse_node,
        }

    # ------------------------------------------------------------------------------------------- from the core

    def send_leases(self, effect: SendLeases) -> None:
        """Send a set of leases to its node; a node without a link receives it after its next Welcome."""
        link = self.by_name.get(effect.node)
        if link is not None:
            link.outbox.send(effect)

    def renew_leases(self, effect: RenewLeases) -> None:
        """Renew the current set of each node that the effect names."""
        for name, generation in effect.generations.items():
            link = self.by_name.get(name)
            if link is not None:
                link.outbox.renew(effect, generation)

    def refuse_node(self, effect: RefuseNode) -> None:
        """Keep the refusal for the agent of this node, whose hello is waiting for an answer."""
        fields = {"node": effect.node, "why": effect.error, "code": effect.code}
        log.warning("node %(node)s is refused: %(why)s", fields)
        self._refusals[effect.node] = effect.error

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Dismiss the agent of a removed node; notify the agent of a resumed node that its withheld GPUs are free."""
        for fact in facts:
            match fact:
                case NodeMoved(mended=True) if link := self.by_name.get(fact.node):
                    link.outbox.put(pb.SchedulerMessage(let_go=pb.LetGo()))
                case NodeRemoved() if link := self.by_name.get(fact.node):
                    why = "an operator removed this node; to add it again, start its agent again"
                    link.dismiss("removed", why)

    # --------------------------------------------------------------------------------------------- for the API

    def view(self, node: str) -> NodeDetails | None:
        """Return the details that a node's agent has reported since this scheduler started; None if there are none."""
        link = self.by_name.get(node)
        return link.view() if link is not None else self._last_views.get(node)

    def cut_off(self, node: str, why: str) -> bool:
        """End the link of a node at once, without a goodbye; return whether there was one."""
        links = [links[node] for links in (self._arriving, self.by_name) if node in links]
        for link in links:
            link.close(why)
        return bool(links)

    async def wait_for_link(self, node: str) -> None:
        """Wait until a node has a link."""
        while node not in self.by_name:
            await self._linked.setdefault(node, asyncio.Event()).wait()

    # ------------------------------------------------------------------------------------------------ arriving

    def open(self, message: pb.AgentMessage, peer: str) -> NodeLink:
        """Open a link for a stream that begins with this Hello."""
        link = NodeLink(message.hello, peer, Outbox(self.world.now_s, self._set_of))
        link.on_message(message.sent_s, self.world.now_s())
        return link

    def stamp(self, link: NodeLink, message: pb.SchedulerMessage) -> pb.SchedulerMessage:
        """Add the agent's time to a message that is about to be written: the message states how much time is left."""
        if message.WhichOneof("body") in ("desired", "renewed"):
            message.agent_s = link.clock.at(self.world.now_s())
        return message

    async def admit(self, link: NodeLink) -> bool:
        """Welcome the agent, or dismiss it; return whether it is welcome."""
        if self._stopping:
            link.close("the scheduler is stopping")
            return False
        margin_s = self.world.state.settings.lease_margin_s
        fault = refusal_of(link.hello, margin_s, VERSION)
        if fault is None and not await self._take_name(link):
            fault = (
                "duplicate",
                f"another agent is linked as '{link.name}': start this one under another name (--name)",
            )
        if fault is None:
            try:
                link.storage = await self._storage_of(link)
                fault = await self._introduce(link)
            finally:
                if self._arriving.get(link.name) is link:
                    del self._arriving[link.name]
        if fault is not None:
            code, why = fault
            fields = {"node": link.name, "code": code, "why": why}
            log.warning("node %(node)s is sent away (%(code)s): %(why)s", fields)
            link.dismiss(*fault)
            return False
        if link.closed.done():
            return False
        welcome = pb.Welcome(
            epoch=self.world.state.epoch,
            scheduler_version=VERSION,
            report_interval_s=self.pace.report_interval_s,
            silence_s=self.pace.silence_s,
        )
        link.welcome = True
        link.outbox.welcome(pb.SchedulerMessage(welcome=welcome))
        self._linked.pop(link.name, asyncio.Event()).set()
        log.info("node %(node)s is linked from %(address)s: %(gpus)d × %(worker_type)s", _fields(link))
        return True

    async def _take_name(self, link: NodeLink) -> bool:
        """Take the name unless another agent's link holds it and answers; return whether the link has the name now."""
        for table in (self._arriving, self.by_name):
            other = table.get(link.name)
            if other is None:
                continue
            if other.incarnation != link.incarnation and await other.answers_within(self.pace.duplicate_s):
                return False
            other.close("another link of the same node replaced it")
        if link.name in self._arriving and self._arriving[link.name].incarnation != link.incarnation:
            # Another agent has taken the name in the meantime.
            return False
        self._arriving[link.name] = link
        return True

    async def _storage_of(self, link: NodeLink) -> str:
        """Return the storage whose checkpoints a node sees; empty if it sees only its own checkpoints."""
        claim, state = link.hello.storage_id, self.world.state
        specs = {name: node.spec for name, node in state.nodes.items()}
        if link.name in specs and not specs[link.name].storage and state.on_node(link.name):
            # Do not change it now: with another storage, the node would lose the leases that it still holds.
            return ""
        sharing = [other for other in self.by_name.values() if other.storage == claim and other is not link]
        match shared_storage.judge_claim(link.name, claim, specs):
            case "known":
                return claim
            case "first" if not sharing:
                return claim
            case "":
                return ""
        if not sharing:
            log.warning(
                "node %(node)s: no linked node can prove that it shares storage %(storage)s",
                {"node": link.name, "storage": claim},
            )
            return ""
        why = await shared_storage.prove(sharing[0].check_storage, link.check_storage, self.pace.proof_s)
        if why:
            log.warning(
                "node %(node)s does not share its checkpoint directory with %(other)s, although both have storage "
                "%(storage)s: %(why)s",
                {"node": link.name, "other": sharing[0].name, "storage": claim, "why": why},
            )
        return "" if why else claim

    async def _introduce(self, link: NodeLink) -> tuple[str, str] | None:
        """Send the Hello to the core and wait until it is durable. If it is refused, return a code and the reason."""
        if link.closed.done() or self._arriving.get(link.name) is not link:
            link.close("another link of the same node replaced it")
            return None
        self.by_name[link.name] = link
        self._refusals.pop(link.name, None)
        durable: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def end_wait(failure: str = "") -> None:
            if failure:
                self._refusals[link.name] = failure
            if not durable.done():
                durable.set_result("")

        self.world.send(hello_of(link.hello, link.storage), end_wait, end_wait)
        await asyncio.wait({durable, link.closed}, return_when=asyncio.FIRST_COMPLETED)
        node = self.world.state.nodes.get(link.name)
        if node is not None and node.left:
            self.world.send(
                NodeCommand(node=link.name, action="resume", user="its agent, which is back", by_agent=True)
            )
        refusal = self._refusals.pop(link.name, None)
        return None if refusal is None else ("refused", refusal)

    # ---------------------------------------------------------------------------------------------- when linked

    def on_message(self, link: NodeLink, message: pb.AgentMessage) -> None:
        """Handle a message of an agent; messages of a closed stream are ignored."""
        if link.closed.done():
            return
        link.on_message(message.sent_s, self.world.now_s())
        match message.WhichOneof("body"):
            case "report":
                self._on_report(link, message.report)
            case "health":
                report = link.on_health(message.health, self.world.state)
                if report is not None:
                    self.world.send(report)
            case "cache_content":
                self.world.send(cache_changed_of(link.name, message.cache_content))
            case "gang_preparing":
                lease = message.gang_preparing.lease
                nodes = self._nodes_of(lease)
                self._send_go(self._gangs.on_preparing(self.world.now_s(), link.name, lease, nodes))
            case "gang_ready":
                body = message.gang_ready
                nodes = self._nodes_of(body.lease)
                orders = self._gangs.on_ready(
                    self.world.now_s(), link.name, body.lease, ready_of(body), nodes
                )
                self._send_go(orders)
            case "leaving":
                node = self.world.state.nodes.get(link.name)
                # A node that an operator has drained stays drained until an operator resumes it.
                if node is None or (node.drained and not node.left):
                    return
                user = "its agent, which stops"
                self.world.send(NodeCommand(node=link.name, action="drain", user=user, by_agent=True))
            case "storage_checked":
                link.on_checked(message.storage_checked)

    def _on_report(self, link: NodeLink, report: pb.Report) -> None:
        link.generation = report.generation

        def confirm() -> None:
            link.outbox.put(pb.SchedulerMessage(taken=pb.Taken(number=report.number)))

        def failed(why: str) -> None:
            node = self.world.state.nodes.get(link.name)
            if node is not None and node.state is NodeState.UP:
                # The agent links again and reports what it holds, which makes up for the lost report.
                link.fail(why)
            else:
                # The node is drained because of this report, or gone: receiving it again would not help.
                confirm()

        self.world.send(report_of(link.name, report), confirm, failed)

    def _nodes_of(self, lease: str) -> tuple[str, ...]:
        """Return the nodes of a lease in force; none if it is over or about to end."""
        holding = self.world.state.leases.get(lease)
        if holding is None or holding.phase not in (Phase.SENT, Phase.RUNNING):
            return ()
        return nodes_of(holding.lease.gpus)

    def _send_go(self, orders: Iterable[Go]) -> None:
        for go in orders:
            link = self.by_name.get(go.node)
            # A node without a link reports again when it is back.
            if link is not None:
                link.outbox.put(go_to(go, self._address_of))

    def _set_of(self, effect: SendLeases) -> pb.SchedulerMessage:
        return desired_to(effect, self.world.state.job, self._address_of, self.world.now_s())

    def _address_of(self, node: str) -> str:
        link = self.by_name.get(node)
        return link.address if link is not None else ""

    # --------------------------------------------------------------------------------------------------- ending

    def on_stream_end(self, link: NodeLink, why: str) -> None:
        """Record that a stream has ended, from either side."""
        link.close(why)
        if self.by_name.get(link.name) is link:
            del self.by_name[link.name]
            self._last_views[link.name] = link.view()
            # A scheduler that stops counts no node as silent.
            if self._stopping:
                return
            log.info(
                "node %(node)s: the link is gone: %(why)s", {"node": link.name, "why": link.closed.result()}
            )
            # A restarted agent or a short network failure must not cost a lease.
            self._silent_at_s[link.name] = min(
                self.world.now_s() + self.pace.away_s, link.last_message_s + self.pace.silence_s
            )

    def stop(self) -> None:
        """Prepare for the stop of the scheduler: welcome no more agents, and count none as silent."""
        self._stopping = True

    def close(self) -> None:
        """End all links."""
        self.stop()
        for link in (*self._arriving.values(), *self.by_name.values()):
            link.close("the scheduler is stopping")

    async def watch(self) -> None:
        """Watch for silence, late gangs and nodes that did not come back, until cancelled."""
        state, now_s = self.world.state, self.world.now_s()
        for name, node in state.nodes.items():
            # After a restart of the scheduler, nodes need some time to link again.
            if node.state in _EXPECTED and name not in self.by_name:
                self._silent_at_s.setdefault(name, now_s + self.pace.silence_s)
        pause_s = min(1.0, self.pace.silence_s / 10, self.pace.away_s / 2)
        while True:
            due_s = self.world.now_s() + pause_s
            await asyncio.sleep(pause_s)
            try:
                now_s = self.world.now_s()
                if now_s > due_s + pause_s:
                    self._postpone_silence(now_s - due_s)
                self._check_all(now_s)
            except Exception:
                log.exception("a check of the links failed; the next one follows")

    def _check_all(self, now_s: float) -> None:
        self._check_links(now_s)
        for name, silent_s in list(self._silent_at_s.items()):
            if name in self.by_name:
                del self._silent_at_s[name]
            elif silent_s <= now_s and not self._stopping:
                del self._silent_at_s[name]
                log.warning("node %(node)s is silent: it has no link, and did not come back", {"node": name})
                self.world.send(NodeSilent(node=name))
        self._send_go(self._gangs.fail_overdue(now_s))
        self._gangs.keep(lambda lease: bool(self._nodes_of(lease)))

    def _postpone_silence(self, late_s: float) -> None:
        """Count nodes as silent later, because the scheduler itself was late and their messages may wait unread."""
        for link in self.by_name.values():
            link.last_message_s += late_s
        for name in self._silent_at_s:
            self._silent_at_s[name] += late_s

    def _check_links(self, now_s: float) -> None:
        quiet_s = self.pace.silence_s / 3
        for link in list(self.by_name.values()):
            if now_s - link.last_message_s > self.pace.silence_s:
                link.close(f"no message arrived for {self.pace.silence_s:g} s")
            elif now_s - link.outbox.put_s > quiet_s:
                link.outbox.put(pb.SchedulerMessage(alive=pb.Alive()))


# After a restart of the scheduler, the nodes in these states should link again.
_EXPECTED = (NodeState.UP, NodeState.DRAINING, NodeState.FAULTY)


def _fields(link: NodeLink) -> dict[str, object]:
    return {
        "node": link.name,
        "address": link.address or "an unknown address",
        "gpus": len(link.hello.gpus),
        "worker_type": link.hello.worker_type,
    }
