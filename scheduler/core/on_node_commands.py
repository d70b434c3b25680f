"""Commands about nodes, from operators and from the nodes' own agents: drain, resume, remove."""

from __future__ import annotations

from scheduler.core import on_rounds
from scheduler.core.facts import NodeMoved, NodeRemoved
from scheduler.core.failed_starts import named_jobs
from scheduler.core.messages import NodeCommand
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.cluster import FAULTY, UP, Node, NodeState
from scheduler.model.errors import InvalidSpec, Refused


def on_command(out: Outcome, message: NodeCommand) -> None:
    """Drain, resume or remove a node."""
    state = out.state
    try:
        if message.action not in ("drain", "resume", "remove"):
            raise InvalidSpec(
                "action", f"is {bounds.readable(message.action)}, must be drain, resume or remove"
            )
        bounds.check_text("user", message.user)
        node = state.node(message.node)
        in_use = any(gpu in state.holders or gpu in state.claims for gpu in node.every_gpu)
        if message.action == "remove" and (in_use or node.state == NodeState.UP):
            raise Refused(_why_not_removed(state, node))
        if message.action != "remove" and node.state in (NodeState.SILENT, NodeState.LOST):
            raise Refused(f"node '{message.node}' is {node.state}")
    except (InvalidSpec, Refused) as error:
        out.refuse(message.call, error)
        return
    if message.action == "remove":
        out.fact(NodeRemoved(node=message.node, by=message.user))
    else:
        new_state = NodeState.DRAINING if message.action == "drain" else NodeState.UP
        why = f"{message.action} by {message.user}" if message.user else message.action
        left = message.by_agent and message.action == "drain"
        faults = bool(node.broken or node.withheld or node.failed_starts)
        mended = faults and message.action == "resume" and not message.by_agent
        out.fact(NodeMoved(node=message.node, state=new_state, why=why, left=left, mended=mended))
    out.reply(message.call, node=message.node)
    on_rounds.kick(out)


def _why_not_removed(state: SchedulerState, node: Node) -> str:
    """Return why a node cannot be removed, and what to do first."""
    name = node.spec.name
    if node.state in (UP, FAULTY):
        return f"node '{name}' is {node.state}: drain it first, and wait until it is empty"
    jobs = list(dict.fromkeys(holding.lease.job for holding in state.on_node(name)))
    if not jobs:
        return f"node '{name}' is {node.state} and some of its GPUs are promised to a job: wait until it is empty"
    return f"node '{name}' is {node.state} and still has {named_jobs(jobs)}: wait until it is empty"
