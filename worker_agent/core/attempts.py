"""What an agent remembers of jobs: the newest attempt that was ordered here, and how the last one ended."""

from __future__ import annotations

import msgspec

from worker_agent.core.messages import Order, ProcessExited, Token


class Seen(msgspec.Struct, gc=False):
    """The newest attempt of a job that was ordered here, and the last exit of the job here."""

    token: Token
    exit: ProcessExited | None = None


class SeenJobs(dict[str, Seen]):
    """By job, those first of which nothing was ordered for longest: they are the first to be forgotten."""

    def take(self, order: Order, jobs_max: int) -> bool:
        """Remember that this was ordered; False if it is not new."""
        job, token = order.job, (order.epoch, order.attempt)
        seen = self.get(job)
        if seen is None:
            self[job] = Seen(token)
            while len(self) > jobs_max:
                del self[next(iter(self))]
        elif token <= seen.token:
            return False
        else:
            del self[job]
            self[job] = seen
            seen.token = token
        return True

    def find(self, order: Order) -> None:
        """It was ordered of an agent that was here before."""
        seen = self.get(order.job)
        if seen is None or order.token >= seen.token:
            self[order.job] = Seen(order.token)

    def end(self, order: Order, exit: ProcessExited) -> None:
        """It ended like this, and is the last of its job unless a newer one was ordered."""
        token = order.epoch, order.attempt
        seen = self.get(order.job)
        if seen is None:
            self[order.job] = Seen(token, exit)
        elif token >= seen.token:
            seen.token, seen.exit = token, exit

    def never_ran(self, order: Order) -> ProcessExited:
        """The exit of an order that had no process here, or had it long ago.

        Figures of an order that never ran are the last ones known here of its job.
        """
        seen = self.get(order.job)
        exit = seen.exit if seen else None
        if exit is not None and exit.lease == order.lease:
            return exit
        steps, saved = (exit.steps, exit.saved) if exit else (0.0, 0.0)
        return ProcessExited(order.lease, "yielded", steps, saved, 0.0, 0.0)
