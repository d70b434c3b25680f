"""Machines on which the renewal of a lease interrupts its job: the job saves and restarts."""

from __future__ import annotations

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Message
from scheduler.sim.engine.gang import RESTARTING, STEPPING, Gang
from scheduler.sim.engine.machines import Machines


class RestartingMachines(Machines):
    """Machines on which each renewal costs a job its checkpoint and its restart."""

    def deliver(self, now_s: float, effect: SendLeases | RenewLeases) -> list[Message]:
        """Deliver leases as Machines do, then restart the jobs whose leases were extended."""
        messages = super().deliver(now_s, effect)
        for name in effect.generations if isinstance(effect, RenewLeases) else (effect.node,):
            if name in self.nodes:
                core = self.nodes[name].core
                gangs = [self.gangs[lease] for lease in core.running if lease in self.gangs]
                for gang in gangs:
                    # A gang on several nodes restarts only once: at the turn of its first node.
                    if gang.nodes[0] == name:
                        self._restart_if_extended(now_s, gang, core.ends_s(gang.lease.id))
        return messages + self._flush(now_s)

    def _restart_if_extended(self, now_s: float, gang: Gang, ends_s: float) -> None:
        if ends_s <= gang.ends_s:
            return
        gang.ends_s = ends_s
        # A gang that is starting or stopping has nothing to restart.
        if gang.phase is not STEPPING:
            return
        gang.settle(now_s)
        if gang.is_at_last_step():
            self._end_at_last_step(now_s, gang)
            return
        self._leave_place(now_s, gang)
        gang.saved = gang.steps
        gang.phase = RESTARTING
        self._due_at(gang, now_s + gang.truth.checkpoint_s + gang.truth.restart_s)
