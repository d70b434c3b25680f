"""Descriptions, for operators, of the messages, steps and effects that failed."""

from __future__ import annotations

from scheduler.core import effects as e
from scheduler.core import messages as m

_MESSAGES: dict[type[m.Message], str] = {
    m.SubmitJobs: "a submission by {by}",
    m.JobCommand: "a request by {by} to {it.action} a job",
    m.UpdateJob: "an update of job {it.job} by {by}",
    m.NodeCommand: "a request by {by} to {it.action} a node",
    m.SetPolicy: "a change of policy by {by}",
    m.SetTenants: "a change of tenants by {by}",
    m.Configure: "a change of settings by {by}",
    m.SetPrices: "a change of prices by {by}",
    m.GiveRates: "throughput rates from {by}",
    m.Forget: "the removal of old jobs",
    m.NodeHello: "a request by node {it.spec.name} to join",
    m.NodeReport: "a report from node {it.node}",
    m.CacheChanged: "a report on the cache of node {it.node}",
    m.NodeSilent: "the lost link to node {it.node}",
    m.Solved: "an answer of the solver",
    m.Woke: "a timer ({it.what})",
}
_EFFECTS: dict[type[e.Effect], str] = {
    e.WakeAt: "setting a timer ({it.what})",
    e.SendLeases: "sending leases to node {it.node}",
    e.RenewLeases: "renewing leases",
    e.Solve: "asking the solver",
    e.Reply: "answering a call",
    e.RefuseNode: "refusing node {it.node}",
}
_TIMERS = {
    "tick": "stating the problem",
    "plan": "planning",
    "fill": "filling idle GPUs",
    "review": "checking limits",
}


def message_words(message: m.Message) -> str:
    """Name a message and its sender: `a submission by ada`, `a report from node n1`, `a timer (plan)`."""
    if isinstance(message, m.NodeCommand) and message.by_agent:
        return f"a request by node {message.node} to {message.action} it"
    by = getattr(message, "user", "") or "an unnamed user"
    return _MESSAGES.get(type(message), "a message").format(by=by, it=message)


def step_words(message: m.Message) -> str:
    """Name the step that a message without a sender triggers: `planning`."""
    match message:
        case m.Woke():
            return _TIMERS.get(message.what, f"a timer ({message.what})")
        case m.Solved():
            return "adopting an allocation"
        case m.NodeSilent():
            return f"noting the lost link to node {message.node}"
    return "handling a message"


def effect_words(effect: e.Effect) -> str:
    """Name an effect: `sending leases to node n1`."""
    return _EFFECTS.get(type(effect), "an effect").format(it=effect)
