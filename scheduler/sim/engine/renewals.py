"""Machines on which a lease is never simply renewed: a job that goes on saves, and starts again."""

from __future__ import annotations

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Message
from scheduler.sim.engine.gang import RESTARTING, STEPPING, Gang
from scheduler.sim.engine.machines import Machines


class RestartingMachines(Machines):
    """Machines, but each renewal costs a job its checkpoint and its restart."""

    def deliver(self, now_s: float, effect: SendLeases | RenewLeases) -> list[Message]:
        """As before; then jobs whose leases end later than they did stop and start again."""
        said = super().deliver(now_s, effect)
        for name in effect.generations if isinstance(effect, RenewLeases) else (effect.node,):
            if name in self.nodes:
                core = self.nodes[name].core
                gangs = [self.gangs[lease] for lease in core.running if lease in self.gangs]
                for gang in gangs:
                    if gang.nodes[0] == name:  # once for all its nodes
                        self._renewed(now_s, gang, core.ends_s(gang.lease.id))
        return said + self._flush(now_s)

    def _renewed(self, now_s: float, gang: Gang, ends_s: float) -> None:
        if ends_s <= gang.ends_s:
            return
        gang.ends_s = ends_s
        if gang.doing is not STEPPING:
            return  # it is starting, or on its way out
        gang.settle(now_s)
        if gang.has_run_out():
            self._run_out(now_s, gang)
            return
        self._leave_place(now_s, gang)
        gang.saved = gang.steps
        gang.doing = RESTARTING
        self._due_at(gang, now_s + gang.truth.checkpoint_s + gang.truth.restart_s)
