"""Events in the scheduler's log: ends of jobs, moves of nodes, changes by users, and slow answers of the solver.

`scheduler.live.agents` logs the links of agents, and `scheduler.live.solver` logs the failures of the solver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from scheduler.core import facts as f
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import Job

log = logging.getLogger("gavel.scheduler")


class EventLines:
    """Writes the events to the log. The Feed has to call `listen`, and JobChanges has to call `job_ended`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._policy = state.settings.policy
        # The number and the time of the newest question to the solver.
        self._newest_question: tuple[int, float] = (0, 0.0)

    def listen(self, now_s: float, facts: Sequence[f.Fact]) -> None:
        """Log the events among these facts."""
        for fact in facts:
            match fact:
                case f.NodeMoved() if fact.state is not NodeState.SILENT:
                    fields = {"node": fact.node, "state": fact.state.value, "why": fact.why}
                    log.info("node %(node)s is %(state)s: %(why)s", fields)
                case f.NodeRemoved():
                    log.info("node %(node)s was removed by %(by)s", {"node": fact.node, "by": fact.by})
                case f.Configured():
                    self._log_settings(fact)
                case f.PricesSet():
                    fields = {"types": ", ".join(sorted(fact.price_per_gpu_hour)), "by": fact.by}
                    log.info("prices of %(types)s were set by %(by)s", fields)
                case f.RatesGiven():
                    rows = len(fact.solo) + len(fact.unconsolidated) + len(fact.pairs)
                    log.info("rates were given by %(by)s (rows: %(rows)d)", {"rows": rows, "by": fact.by})
                case f.AllocationAsked():
                    self._newest_question = (fact.number, now_s)
                case f.AllocationAdopted():
                    self._log_slow_answer(fact, now_s)

    def job_ended(self, job: Job) -> None:
        """Log how a job ended."""
        fields = {
            "job": job.id,
            "name": job.spec.name or job.spec.job_type,
            "user": job.spec.user,
            "state": job.state.value,
            "attempts": job.attempt,
            "run_s": round(self._ran_s(job), 1),
            "why": job.why,
        }
        text = "job %(job)s (%(name)s of %(user)s) %(state)s after %(run_s)s s in attempt %(attempts)d"
        log.info(f"{text}: %(why)s" if job.why else text, fields)

    def _ran_s(self, job: Job) -> float:
        """Return how long a job ran, including an attempt that is still being stopped."""
        holding = self._state.leases.get(job.lease or job.leaving or "")
        if holding is None or holding.started_s is None or job.ended_s is None:
            return job.run_s
        return job.run_s + max(job.ended_s - holding.started_s, 0.0)

    def _log_settings(self, fact: f.Configured) -> None:
        old, self._policy = self._policy, fact.settings.policy
        fields = {"policy": self._policy, "was": old, "by": fact.by}
        if old != self._policy:
            log.info("the policy is %(policy)s, set by %(by)s; it was %(was)s", fields)
        else:
            log.info("settings were changed by %(by)s", fields)

    def _log_slow_answer(self, fact: f.AllocationAdopted, now_s: float) -> None:
        """Log an answer that took longer than solve_lead_s and so came too late for its round."""
        number, asked_s = self._newest_question
        took_s, lead_s = now_s - asked_s, self._state.settings.solve_lead_s
        if number == fact.number and took_s > lead_s:
            fields = {"number": number, "policy": fact.policy, "took_s": round(took_s, 1), "lead_s": lead_s}
            log.info(
                "allocation %(number)d by %(policy)s took %(took_s)s s, more than solve_lead_s (%(lead_s)s): the round "
                "was planned without it",
                fields,
            )
