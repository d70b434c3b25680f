"""For each job ordered on this node: its newest attempt, and its last exit here."""

from __future__ import annotations

import msgspec

from worker_agent.core.messages import Order, ProcessExited, Token


class Attempt(msgspec.Struct, gc=False):
    """The newest attempt of a job on this node, and the job's last exit here, which may be of an earlier attempt."""

    token: Token
    exit: ProcessExited | None = None


class Attempts(dict[str, Attempt]):
    """Attempts by job. The least recently ordered job comes first, and is evicted first."""

    def order(self, order: Order, jobs_max: int) -> bool:
        """Record the attempt of an order. Return False if the order is stale or was recorded before."""
        job, token = order.job, (order.epoch, order.attempt)
        attempt = self.get(job)
        if attempt is None:
            self[job] = Attempt(token)
            while len(self) > jobs_max:
                del self[next(iter(self))]
        elif token <= attempt.token:
            return False
        else:
            del self[job]
            self[job] = attempt
            attempt.token = token
        return True

    def adopt(self, order: Order) -> None:
        """Record the attempt of an order that an earlier agent on this node received."""
        attempt = self.get(order.job)
        if attempt is None or order.token >= attempt.token:
            self[order.job] = Attempt(order.token)

    def end(self, order: Order, exit: ProcessExited) -> None:
        """Record the exit of an attempt, unless a newer attempt was ordered."""
        token = order.epoch, order.attempt
        attempt = self.get(order.job)
        if attempt is None:
            self[order.job] = Attempt(token, exit)
        elif token >= attempt.token:
            attempt.token, attempt.exit = token, exit

    def exit_without_run(self, order: Order) -> ProcessExited:
        """Return the exit to report for an order without processes.

        If the order has run, this is the order's own exit. Otherwise it is a new exit, with a running time of 0 and
        with the progress that the job had at its last exit on this node.
        """
        attempt = self.get(order.job)
        exit = attempt.exit if attempt else None
        if exit is not None and exit.lease == order.lease:
            return exit
        steps, saved = (exit.steps, exit.saved) if exit else (0.0, 0.0)
        return ProcessExited(order.lease, "yielded", steps, saved, 0.0, 0.0)
