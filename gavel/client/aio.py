"""The client for programs with an event loop. `gavel.client.client` is its blocking twin."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from gavel.client import calls, lookups
from gavel.client import results as r
from gavel.client.atomic_file import AtomicFile
from gavel.client.calls import JobFilter
from gavel.client.client import PATIENCE_S, Connected
from gavel.client.errors import NotReachable
from gavel.client.files.methods import AsyncFileMethods
from gavel.client.history import AsyncHistoryMethods
from gavel.client.jobs.intake import Jobs
from gavel.client.jobs.packing import Progress
from gavel.client.jobs.uploads import Uploads, without_uploads
from gavel.client.log_lines import LogLine, LogLines
from gavel.client.notifications import AsyncNotificationMethods
from gavel.client.plans.methods import AsyncPlanMethods
from gavel.client.queue import Queue
from gavel.client.results.states import Role
from gavel.client.transport.channels import AsyncTransport
from gavel.client.transport.following import Reading, Waiting


class AsyncClient(
    AsyncFileMethods,
    AsyncHistoryMethods,
    AsyncNotificationMethods,
    AsyncPlanMethods,
    Connected[AsyncTransport],
):
    """A connection to a scheduler.

        async with AsyncClient() as client:
            (job,) = await client.submit(JobSpec(command=("python", "train.py"), gpus=4))
            (ended,) = await client.wait(job)

    Address, token and CA come from the arguments, the environment or the contexts file (`gavel.client.settings`).
    While the scheduler does not answer, calls that are safe to repeat are retried for `retry_s`; a submission is safe
    to repeat because of its key. `on_trouble` is called with the error and the seconds left to try, and with None when
    calls work again. `gavel.client.errors` lists the errors of all calls. Use one client in one event loop only.
    """

    _transport = AsyncTransport

    async def close(self) -> None:
        """Close the connection."""
        await self._wire.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _id(self, job: str) -> str:
        return await self._wire.ask(lookups.id_of(job))

    # --------------------------------------------------------------------------------------------------- jobs

    async def submit(
        self, jobs: Jobs, key: str | None = None, progress: Progress | None = None
    ) -> tuple[str, ...]:
        """Submit one job, several, or a job file: all jobs or none. Return their ids after they are stored durably.

        `key`: a submission repeated with the same key and jobs returns the same ids. By default, the key is random.
        """
        with await asyncio.to_thread(Uploads, await self.with_plans(jobs, progress), progress) as uploads:
            digests = list(uploads.packages)
            present = (
                await self._wire.call(calls.find_packages(digests=digests)) if digests else frozenset[str]()
            )
            for digest in digests:
                if digest not in present:
                    await self._wire.call(calls.upload(digest, partial(uploads.pieces, digest)))
            return await self._wire.call(
                calls.submit(uploads.specs, os.urandom(16).hex() if key is None else key)
            )

    async def preview(self, jobs: Jobs) -> tuple[r.Preview, ...]:
        """Return what would happen to each job if it were submitted; submit nothing."""
        previews: tuple[r.Preview, ...] = ()
        for part in calls.in_parts(without_uploads(await self.with_plans(jobs))):
            previews += await self._wire.call(calls.preview(part))
        return previews

    async def get(self, job: str) -> r.Job:
        """Return one job."""
        return await self._wire.call(calls.get(job=await self._id(job)))

    async def members(self, job: str) -> tuple[r.Job, ...]:
        """Return the jobs of an array by index; for a job that is not an array, only this job."""
        return await self._wire.ask(lookups.members(job))

    async def queue(
        self, wanted: JobFilter | None = None, *, all_users: bool = False, limit: int | None = 1000
    ) -> Queue:
        """Return jobs as `gavel queue` lists them: by default your unfinished ones, the newest first.

        A filter without a user selects your jobs or, with `all_users`, those of all users; a filter without states and
        times selects unfinished jobs. The jobs lack the fields that lists omit, such as their command.
        """
        return await self._wire.ask(lookups.queue(wanted, all_users, limit))

    async def list(
        self, wanted: JobFilter | None = None, *, page_size: int = 0, brief: bool = False
    ) -> AsyncIterator[r.Job]:
        """Yield jobs, newest first, fetching pages as needed."""
        wanted, token = await self._wire.ask(lookups.with_ids(wanted)), ""
        while True:
            page = await self._wire.call(calls.list_jobs(wanted, page_size, token, brief))
            for job in page.jobs:
                yield job
            if not (token := page.next_page_token):
                return

    async def page(
        self, wanted: JobFilter | None = None, *, size: int = 0, token: str = "", brief: bool = False
    ) -> r.JobPage:
        """Return one page of a list of jobs, with the token of the next page and the number of jobs in all."""
        wanted = await self._wire.ask(lookups.with_ids(wanted))
        return await self._wire.call(calls.list_jobs(wanted, size, token, brief))

    async def watch(
        self, wanted: JobFilter | None = None, *, skip_present: bool = False, patience_s: float = 0.0
    ) -> AsyncIterator[r.JobEvent]:
        """Yield the current state of each job, then every change.

        A lost connection raises an error. With `patience_s`, the client instead tries to reconnect for up to that long.
        The stream then starts again: the current state of each job, the event `all_present`, then every change.
        """
        wanted = await self._wire.ask(lookups.with_ids(wanted))
        async with aclosing(self._wire.follow(calls.watching(wanted, skip_present), patience_s)) as events:
            async for event in events:
                yield event

    async def wait(
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
        waiting = Waiting(await self._wire.ask(lookups.ids_of(jobs)))
        if waiting.is_empty:
            return ()
        async with aclosing(self._wire.follow(waiting.call, patience_s, timeout_s)) as events:
            async for event in events:
                waiting.take(event)
                if on_change is not None and event.job is not None:
                    on_change(event.job)
                if waiting.is_over:
                    break
        return waiting.jobs

    async def live(self, jobs: str | Iterable[str] | None = None, *, every_s: float = 2.0) -> None:
        """Show jobs, as they change, until they have ended: your unfinished ones, or these jobs and arrays.

        In a notebook, the cell updates, on a terminal, its lines; elsewhere, each change is a line. An outage of the
        scheduler is shown, too. The stop button, Ctrl-C or the end of the task ends the view, not the jobs.
        """
        from gavel.client.views.display import showing

        followed = lookups.Followed(jobs)
        queue, trouble = await self._wire.ask(followed.poll()), ""
        with showing() as show:
            while True:
                show(queue, trouble)
                if followed.is_over:
                    return
                await asyncio.sleep(every_s)
                try:
                    queue, trouble = await self._wire.ask(followed.poll()), ""
                except NotReachable as error:
                    trouble = f"still trying: {error}"

    async def cancel(self, job: str) -> tuple[str, ...]:
        """Cancel a job or array; return the ids of the affected jobs."""
        return await self._wire.call(calls.command(job=await self._id(job), action="cancel"))

    async def hold(self, job: str) -> tuple[str, ...]:
        """Keep a job or array from running until it is released; return the ids of the affected jobs."""
        return await self._wire.call(calls.command(job=await self._id(job), action="hold"))

    async def release(self, job: str) -> tuple[str, ...]:
        """Let a held job or array run again; return the ids of the affected jobs."""
        return await self._wire.call(calls.command(job=await self._id(job), action="release"))

    async def requeue(self, job: str) -> tuple[str, ...]:
        """Stop a job or array and put it back into the queue; return the ids of the affected jobs."""
        return await self._wire.call(calls.command(job=await self._id(job), action="requeue"))

    async def update(self, job: str, **changes: Any) -> tuple[str, ...]:
        """Change fields of a job or array that has not ended; return the ids of the affected jobs.

        `changes`: fields of JobSpec: name, weight, tenant, gpus, gpus_min, gpus_max, gpus_together, worker_types,
        plans, retries, time_limit_s, deadline_s and max_cost. None removes a limit. `deadline_s` counts from now.
        GPUs and worker types of a running job cannot change, and only operators change tenants.
        """
        return await self._wire.call(calls.update(await self._id(job), changes))

    async def explain(self, job: str) -> r.Explanation:
        """Return why a job runs, waits or has ended, with the details."""
        return await self._wire.call(calls.explain(job=await self._id(job)))

    async def logs(
        self,
        job: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> AsyncIterator[LogLine]:
        """Yield the lines of one attempt of a job, or of all (`attempt` 0); with `follow`, until the job has ended.

        `rank`: only the output of this rank. `tail`: only this many last lines. Each line names its rank, attempt and
        node; a notice about missing output is a line of its own, `-- … --`.
        """
        lines = LogLines()
        chunks = self.log_chunks(
            job, attempt=attempt, rank=rank, tail=tail, follow=follow, patience_s=patience_s
        )
        async with aclosing(chunks) as open_chunks:
            async for chunk in open_chunks:
                for line in lines.take(chunk):
                    yield line
        for line in lines.end():
            yield line

    async def log_chunks(
        self,
        job: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> AsyncGenerator[r.LogChunk, None]:
        """Yield the output of a job as `logs` does, in pieces of bytes with their place in the output."""
        reading = Reading(await self._id(job), attempt, rank, tail, follow)
        chunks = self._wire.follow(reading.call, patience_s) if follow else self._wire.stream(reading.call())
        async with aclosing(chunks) as open_chunks:
            async for chunk in open_chunks:
                if (part := reading.new_part(chunk)) is not None:
                    yield part

    # ------------------------------------------------------------------------------------------------ the cluster

    async def status(self) -> r.Status:
        """Return the state of the scheduler: its version, policy, round and load."""
        return await self._wire.call(calls.status())

    async def nodes(self, names: Sequence[str] = ()) -> tuple[r.Node, ...]:
        """Return the nodes with these names or, without names, all nodes."""
        return await self._wire.call(calls.nodes(nodes=names))

    async def drain(self, node: str, reason: str = "") -> r.Node:
        """Start no more jobs on a node; jobs that run there finish their turn. `reason`: for `Node.why`."""
        return await self._wire.call(calls.command_node(node=node, action="drain", reason=reason))

    async def resume(self, node: str, reason: str = "") -> r.Node:
        """Let a drained or faulty node take jobs again. `reason`: for `Node.why`."""
        return await self._wire.call(calls.command_node(node=node, action="resume", reason=reason))

    async def remove(self, node: str) -> r.Node:
        """Remove a node that is not up and has no leases."""
        return await self._wire.call(calls.command_node(node=node, action="remove"))

    async def policy(self) -> r.Policy:
        """Return the policy in force and the names of all policies."""
        return await self._wire.call(calls.policy())

    async def set_policy(self, spec: str) -> r.Policy:
        """Set the policy, from the next allocation on."""
        return await self._wire.call(calls.set_policy(policy=spec))

    async def tenants(self, names: Sequence[str] = ()) -> tuple[r.Tenant, ...]:
        """Return the tenants with these names or, without names, all that are declared or have unfinished jobs."""
        return await self._wire.call(calls.tenants(tenants=names))

    async def set_tenants(self, *tenants: r.Tenant, removed: Sequence[str] = ()) -> None:
        """Declare tenants, each in place of one with its name; forget the declarations of those in `removed`."""
        await self._wire.call(calls.set_tenants(tenants, removed))

    async def allocation(self) -> r.Allocation:
        """Return the share of the cluster that each job is entitled to, from the latest allocation."""
        return await self._wire.call(calls.allocation())

    def rounds(self, *, follow: bool = True) -> AsyncIterator[r.Round]:
        """Yield the current round and, with `follow`, each later one as it is planned."""
        return self._wire.stream(calls.rounds(follow=follow))

    async def set_prices(self, prices: Mapping[str, float]) -> Mapping[str, float]:
        """Set the prices per GPU and hour of these worker types; return the prices of all types."""
        return await self._wire.call(calls.set_prices(price_per_gpu_hour=prices))

    async def rates(self, job_type: str = "") -> tuple[r.Rate, ...]:
        """Return the scheduler's estimates of how fast jobs run."""
        return await self._wire.call(calls.rates(job_type=job_type))

    # ----------------------------------------------------------------------------------------------------- access

    async def who_am_i(self) -> r.Identity:
        """Return the user and role of this client."""
        return await self._wire.call(calls.who_am_i())

    async def create_token(
        self, user: str = "", role: Role = Role.USER, *, valid_s: float = 0.0, note: str = ""
    ) -> r.NewToken:
        """Create a token, for yourself or, as an admin, for others. Only this reply contains its secret.

        `valid_s`: the seconds until it expires; 0: the scheduler's setting.
        """
        return await self._wire.call(calls.create_token(user=user, role=role, valid_s=valid_s, note=note))

    async def tokens(self, user: str = "") -> tuple[r.Token, ...]:
        """Return your own tokens; for admins, the tokens of one user, or of all users."""
        return await self._wire.call(calls.tokens(user=user))

    async def revoke_token(self, token: str) -> r.Token:
        """Revoke the token with this id."""
        return await self._wire.call(calls.revoke_token(id=token))

    async def create_join_token(self, node: str = "", *, valid_s: float = 0.0) -> r.JoinToken:
        """Create a token that one node can exchange, once, for its certificate.

        `node`: the only node that may use the token; empty: any node may. `valid_s`: the seconds until the token
        expires; 0: an hour.
        """
        return await self._wire.call(calls.create_join_token(node=node, valid_s=valid_s))

    async def revoke_node(self, node: str) -> r.RevokedNode:
        """Revoke all certificates issued to a node and all join tokens for it, and close its connection."""
        return await self._wire.call(calls.revoke_node(node=node))

    async def revoked_nodes(self) -> tuple[r.NodeRevocation, ...]:
        """Return the revoked nodes, in the order of their names."""
        return await self._wire.call(calls.revoked_nodes())

    async def unrevoke_node(self, node: str) -> str:
        """Undo the revocation of a node: all its certificates become valid again. Return the node's name."""
        return await self._wire.call(calls.unrevoke_node(node=node))

    # ----------------------------------------------------------------------------------------------------- upkeep

    async def backup(self, path: str | os.PathLike[str], packages: bool = False) -> int:
        """Write the scheduler's data directory into one file, for `gavel restore`; return the file's size in bytes.

        Only admins may do this, because the file contains keys. An existing file is replaced only after the new
        one is complete. Raises OSError if the file cannot be written.
        """
        with AtomicFile(path) as file:
            async with aclosing(self._wire.stream(calls.backup(packages=packages))) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
        return file.size_bytes
