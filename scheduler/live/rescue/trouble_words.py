"""Words for operators for the step at which the scheduler failed. The log has the names of the code."""

from __future__ import annotations

from scheduler.core import effects as e
from scheduler.core import messages as m

_TIMERS = {
    "tick": "stating the problem",
    "plan": "planning",
    "fill": "filling idle GPUs",
    "review": "checking limits",
}


def message_words(message: m.Message) -> str:
    """Name a message and its sender: `a submission by ada`, `a report from node n1`, `a timer (plan)`."""
    by = getattr(message, "user", "") or "an unnamed user"
    match message:
        case m.SubmitJobs():
            return f"a submission by {by}"
        case m.JobCommand():
            return f"a request by {by} to {message.action} a job"
        case m.NodeCommand(by_agent=True):
            return f"a request by node {message.node} to {message.action} it"
        case m.NodeCommand():
            return f"a request by {by} to {message.action} a node"
        case m.SetPolicy():
            return f"a change of policy by {by}"
        case m.Configure():
            return f"a change of settings by {by}"
        case m.SetPrices():
            return f"a change of prices by {by}"
        case m.GiveRates():
            return f"throughput rates from {by}"
        case m.Forget():
            return "the removal of old jobs"
        case m.NodeHello():
            return f"a request by node {message.spec.name} to join"
        case m.NodeReport():
            return f"a report from node {message.node}"
        case m.NodeSilent():
            return f"the lost link to node {message.node}"
        case m.Solved():
            return "an answer of the solver"
        case m.Woke():
            return f"a timer ({message.what})"
    return "a message"


def step_words(message: m.Message) -> str:
    """Name what the scheduler does upon a message that has no sender: `planning`."""
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
    match effect:
        case e.WakeAt():
            return f"setting a timer ({effect.what})"
        case e.SendLeases():
            return f"sending leases to node {effect.node}"
        case e.RenewLeases():
            return "renewing leases"
        case e.Solve():
            return "asking the solver"
        case e.Reply():
            return "answering a call"
        case e.RefuseNode():
            return f"refusing node {effect.node}"
