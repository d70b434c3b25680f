"""The blocking client. `gavel.client.aio` is its twin for programs with an event loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gavel.client import calls, lookups
from gavel.client.atomic_file import AtomicFile
from gavel.client.calls import JobFilter
from gavel.client.errors import NotReachable
from gavel.client.files.methods import FileMethods
from gavel.client.history import HistoryMethods
from gavel.client.jobs.intake import Jobs
from gavel.client.jobs.uploads import Uploads, without_uploads
from gavel.client.log_lines import LogLine, LogLines
from gavel.client.notifications import NotificationMethods
from gavel.client.plans.methods import PlanMethods
from gavel.client.queue import Queue
from gavel.client.results.states import Role
from gavel.client.settings import find_connection
from gavel.client.transport.channels import AsyncTransport, SyncTransport
from gavel.client.transport.following import Reading, Waiting
from gavel.client.transport.notices import OnTrouble

if TYPE_CHECKING:
    from gavel.client import results as r
    from gavel.client.jobs.packing import Progress

W = TypeVar("W", bound=SyncTransport | AsyncTransport)
# How long one call may take, and for how long it is retried.
TIMEOUT_S, RETRY_S = 30.0, 15.0
# For how long a stream tries to reconnect.
PATIENCE_S = 600.0


class Connected(Generic[W]):
    """The base of both clients: how they connect, and the settings that may change between calls."""

    _transport: type[W]
    _wire: W

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        context: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self.connection = find_connection(address, token, ca, context)
        self._wire = self._transport(self.connection, timeout_s, retry_s, on_trouble)

    @property
    def retry_s(self) -> float:
        """The seconds for which a call is retried while the scheduler does not answer."""
        return self._wire.retry_s

    @retry_s.setter
    def retry_s(self, retry_s: float) -> None:
        self._wire.retry_s = retry_s

    @property
    def on_trouble(self) -> OnTrouble | None:
        """The function called while the scheduler does not answer, or None."""
        return self._wire.on_trouble

    @on_trouble.setter
    def on_trouble(self, on_trouble: OnTrouble | None) -> None:
        self._wire.on_trouble = on_trouble


class Client(FileMethods, HistoryMethods, NotificationMethods, PlanMethods, Connected[SyncTransport]):
    """A connection to a scheduler.

        with Client() as client:
            (job,) = client.submit(JobSpec(command=("python", "train.py"), gpus=4))
            (ended,) = client.wait(job)

    Address, token and CA come from the arguments, the environment or the contexts file (`gavel.client.settings`).
    While the scheduler does not answer, calls that are safe to repeat are retried for `retry_s`; its key makes a
    submission safe to repeat. `on_trouble` is called with the error and the seconds left to try, and with None when
    calls work again. `gavel.client.errors` lists the errors. Several threads may share a client.
    """

    _transport = SyncTransport

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _id(self, job: str) -> str:
        return self._wire.ask(lookups.id_of(job))

    # --------------------------------------------------------------------------------------------------- jobs

    def submit(self, jobs: Jobs, key: str | None = None, progress: Progress | None = None) -> tuple[str, ...]:
        """Submit one job, several, or a job file: all jobs or none. Return their ids after they are stored durably.

        `key`: a submission repeated with the same key and jobs returns the same ids. By default, the key is random.
        """
        with Uploads(self.with_plans(jobs, progress), progress) as uploads:
            digests = list(uploads.packages)
            present = self._wire.call(calls.find_packages(digests=digests)) if digests else frozenset[str]()
            for digest in digests:
                if digest not in present:
                    self._wire.call(calls.upload(digest, partial(uploads.pieces, digest)))
            return self._wire.call(calls.submit(uploads.specs, os.urandom(16).hex() if key is None else key))

    def preview(self, jobs: Jobs) -> tuple[r.Preview, ...]:
        """Return what would happen to each job if it were submitted; submit nothing."""
        previews: tuple[r.Preview, ...] = ()
        for part in calls.in_parts(without_uploads(self.with_plans(jobs))):
            previews += self._wire.call(calls.preview(part))
        return previews

    def get(self, job: str) -> r.Job:
        """Return one job."""
        return self._wire.call(calls.get(job=self._id(job)))

    def members(self, job: str) -> tuple[r.Job, ...]:
        """Return the jobs of an array by index; for a job that is not an array, only this job."""
        return self._wire.ask(lookups.members(job))

    def queue(
        self, wanted: JobFilter | None = None, *, all_users: bool = False, limit: int | None = 1000
    ) -> Queue:
        """Return jobs as `gavel queue` lists them: by default your unfinished ones, the newest first.

        A filter without a user selects your jobs or, with `all_users`, those of all users; a filter without states and
        times selects unfinished jobs. The jobs lack the fields that lists omit, such as their command.
        """
        return self._wire.ask(lookups.queue(wanted, all_users, limit))

    def list(
        self, wanted: JobFilter | None = None, *, page_size: int = 0, brief: bool = False
    ) -> Iterator[r.Job]:
        """Yield jobs, newest first, fetching pages as needed."""
        wanted, token = self._wire.ask(lookups.with_ids(wanted)), ""
        while True:
            page = self._wire.call(calls.list_jobs(wanted, page_size, token, brief))
            yield from page.jobs
            if not (token := page.next_page_token):
                return

    def page(
        self, wanted: JobFilter | None = None, *, size: int = 0, token: str = "", brief: bool = False
    ) -> r.JobPage:
        """Return one page of a list of jobs, with the token of the next page and the number of jobs in all."""
        wanted = self._wire.ask(lookups.with_ids(wanted))
        return self._wire.call(calls.list_jobs(wanted, size, token, brief))

    def watch(
        self, wanted: JobFilter | None = None, *, skip_present: bool = False, patience_s: float = 0.0
    ) -> Iterator[r.JobEvent]:
        """Yield the current state of each job, then every change.

        A lost connection raises an error. With `patience_s`, the client instead tries to reconnect for up to that long.
        The stream then starts again: the current state of each job, the event `all_present`, then every change.
        """
        wanted = self._wire.ask(lookups.with_ids(wanted))
        yield from self._wire.follow(calls.watching(wanted, skip_present), patience_s)

    def wait(
        self,
        jobs: str | Iterable[str],
        *,
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
        on_change: Callable[[r.Job], None] | None = None,
    ) -> tuple[r.Job, ...]:
        """Wait until all of these jobs or arrays have ended; return them.

        Each outage of the scheduler may last up to `patience_s`. `on_change` is called with the current state of each
        job and again after each change. Raises TimeoutError after `timeout_s`.
        """
        waiting = Waiting(self._wire.ask(lookups.ids_of(jobs)))
        if waiting.is_empty:
            return ()
        for event in self._wire.follow(waiting.call, patience_s, timeout_s):
            waiting.take(event)
            if on_change is not None and event.job is not None:
                on_change(event.job)
            if waiting.is_over:
                break
        return waiting.jobs

    def live(self, jobs: str | Iterable[str] | None = None, *, every_s: float = 2.0) -> None:
        """Show jobs, as they change, until they have ended: your unfinished ones, or these jobs and arrays.

        In a notebook, the cell updates, on a terminal, its lines; elsewhere, each change is a line. An outage of the
        scheduler is shown, too. The stop button, Ctrl-C or the end of the task ends the view, not the jobs.
        """
        from gavel.client.views.display import showing

        followed = lookups.Followed(jobs)
        queue, trouble = self._wire.ask(followed.poll()), ""
        with showing() as show, suppress(KeyboardInterrupt):
            while True:
                show(queue, trouble)
                if followed.is_over:
                    return
                time.sleep(every_s)
                try:
                    queue, trouble = self._wire.ask(followed.poll()), ""
                except NotReachable as error:
                    trouble = f"still trying: {error}"

    def cancel(self, job: str) -> tuple[str, ...]:
        """Cancel a job or array; return the ids of the affected jobs."""
        return self._wire.call(calls.command(job=self._id(job), action="cancel"))

    def hold(self, job: str) -> tuple[str, ...]:
        """Keep a job or array from running until it is released; return the ids of the affected jobs."""
        return self._wire.call(calls.command(job=self._id(job), action="hold"))

    def release(self, job: str) -> tuple[str, ...]:
        """Let a held job or array run again; return the ids of the affected jobs."""
        return self._wire.call(calls.command(job=self._id(job), action="release"))

    def requeue(self, job: str) -> tuple[str, ...]:
        """Stop a job or array and put it back into the queue; return the ids of the affected jobs."""
        return self._wire.call(calls.command(job=self._id(job), action="requeue"))

    def update(self, job: str, **changes: Any) -> tuple[str, ...]:
        """Change fields of a job or array that has not ended; return the ids of the affected jobs.

        `changes`: fields of JobSpec: name, weight, tenant, gpus, gpus_min, gpus_max, gpus_together, worker_types,
        plans, retries, time_limit_s, deadline_s and max_cost. None removes a limit. `deadline_s` counts from now.
        GPUs and worker types of a running job cannot change, and only operators change tenants.
        """
        return self._wire.call(calls.update(self._id(job), changes))

    def explain(self, job: str) -> r.Explanation:
        """Return why a job runs, waits or has ended, with the details."""
        return self._wire.call(calls.explain(job=self._id(job)))

    def logs(
        self,
        job: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[LogLine]:
        """Yield the lines of one attempt of a job, or of all (`attempt` 0); with `follow`, until the job has ended.

        `rank`: only the output of this rank. `tail`: only this many last lines. Each line names its rank, attempt and
        node; a notice about missing output is a line of its own, `-- … --`.
        """
        lines = LogLines()
        for chunk in self.log_chunks(
            job, attempt=attempt, rank=rank, tail=tail, follow=follow, patience_s=patience_s
        ):
            yield from lines.take(chunk)
        yield from lines.end()

    def log_chunks(
        self,
        job: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[r.LogChunk]:
        """Yield the output of a job as `logs` does, in pieces of bytes with their place in the output."""
        reading = Reading(self._id(job), attempt, rank, tail, follow)
        chunks = self._wire.follow(reading.call, patience_s) if follow else self._wire.stream(reading.call())
        for chunk in chunks:
            if (part := reading.new_part(chunk)) is not None:
                yield part

    # ------------------------------------------------------------------------------------------------ the cluster

    def status(self) -> r.Status:
        """Return the state of the scheduler: its version, policy, round and load."""
        return self._wire.call(calls.status())

    def nodes(self, names: Sequence[str] = ()) -> tuple[r.Node, ...]:
        """Return the nodes with these names or, without names, all nodes."""
        return self._wire.call(calls.nodes(nodes=names))

    def drain(self, node: str, reason: str = "") -> r.Node:
        """Start no more jobs on a node; jobs that run there finish their turn. `reason`: for `Node.why`."""
        return self._wire.call(calls.command_node(node=node, action="drain", reason=reason))

    def resume(self, node: str, reason: str = "") -> r.Node:
        """Let a drained or faulty node take jobs again. `reason`: for `Node.why`."""
        return self._wire.call(calls.command_node(node=node, action="resume", reason=reason))

    def remove(self, node: str) -> r.Node:
        """Remove a node that is not up and has no leases."""
        return self._wire.call(calls.command_node(node=node, action="remove"))

    def policy(self) -> r.Policy:
        """Return the policy in force and the names of all policies."""
        return self._wire.call(calls.policy())

    def set_policy(self, spec: str) -> r.Policy:
        """Set the policy, from the next allocation on."""
        return self._wire.call(calls.set_policy(policy=spec))

    def tenants(self, names: Sequence[str] = ()) -> tuple[r.Tenant, ...]:
        """Return the tenants with these names or, without names, all that are declared or have unfinished jobs."""
        return self._wire.call(calls.tenants(tenants=names))

    def set_tenants(self, *tenants: r.Tenant, removed: Sequence[str] = ()) -> None:
        """Declare tenants, each in place of one with its name; forget the declarations of those in `removed`."""
        self._wire.call(calls.set_tenants(tenants, removed))

    def allocation(self) -> r.Allocation:
        """Return the share of the cluster that each job is entitled to, from the latest allocation."""
        return self._wire.call(calls.allocation())

    def rounds(self, *, follow: bool = True) -> Iterator[r.Round]:
        """Yield the current round and, with `follow`, each later one as it is planned."""
        return self._wire.stream(calls.rounds(follow=follow))

    def set_prices(self, prices: Mapping[str, float]) -> Mapping[str, float]:
        """Set the prices per GPU and hour of these worker types; return the prices of all types."""
        return self._wire.call(calls.set_prices(price_per_gpu_hour=prices))

    def rates(self, job_type: str = "") -> tuple[r.Rate, ...]:
        """Return the scheduler's estimates of how fast jobs run."""
        return self._wire.call(calls.rates(job_type=job_type))

    # ----------------------------------------------------------------------------------------------------- access

    def who_am_i(self) -> r.Identity:
        """Return the user and role of this client."""
        return self._wire.call(calls.who_am_i())

    def create_token(
        self, user: str = "", role: Role = Role.USER, *, valid_s: float = 0.0, note: str = ""
    ) -> r.NewToken:
        """Create a token, for yourself or, as an admin, for others. Only this reply contains its secret.

        `valid_s`: the seconds until it expires; 0: the scheduler's setting.
        """
        return self._wire.call(calls.create_token(user=user, role=role, valid_s=valid_s, note=note))

    def tokens(self, user: str = "") -> tuple[r.Token, ...]:
        """Return your own tokens; for admins, the tokens of one user, or of all users."""
        return self._wire.call(calls.tokens(user=user))

    def revoke_token(self, token: str) -> r.Token:
        """Revoke the token with this id."""
        return self._wire.call(calls.revoke_token(id=token))

    def create_join_token(self, node: str = "", *, valid_s: float = 0.0) -> r.JoinToken:
        """Create a token that one node can exchange, once, for its certificate.

        `node`: the only node that may use the token; empty: any node may. `valid_s`: the seconds until the token
        expires; 0: an hour.
        """
        return self._wire.call(calls.create_join_token(node=node, valid_s=valid_s))

    def revoke_node(self, node: str) -> r.RevokedNode:
        """Revoke all certificates issued to a node and all join tokens for it, and close its connection."""
        return self._wire.call(calls.revoke_node(node=node))

    def revoked_nodes(self) -> tuple[r.NodeRevocation, ...]:
        """Return the revoked nodes, in the order of their names."""
        return self._wire.call(calls.revoked_nodes())

    def unrevoke_node(self, node: str) -> str:
        """Undo the revocation of a node: all its certificates become valid again. Return the node's name."""
        return self._wire.call(calls.unrevoke_node(node=node))

    # ----------------------------------------------------------------------------------------------------- upkeep

    def backup(self, path: str | os.PathLike[str], packages: bool = False) -> int:
        """Write the scheduler's data directory into one file, for `gavel restore`; return the file's size in bytes.

        Only admins may do this, because the file contains keys. An existing file is replaced only after the new
        one is complete. Raises OSError if the file cannot be written.
        """
        with AtomicFile(path) as file:
            for piece in self._wire.stream(calls.backup(packages=packages)):
                file.write(piece)
        return file.size_bytes
