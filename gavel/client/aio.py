"""The client for programs with an event loop. `gavel.client.client` is its twin; what calls mean is in `calls`."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial

from gavel.client import calls
from gavel.client import results as r
from gavel.client.atomic_file import Saving
from gavel.client.calls import By, JobFilter
from gavel.client.client import PATIENCE_S, RETRY_S, TIMEOUT_S
from gavel.client.jobs.intake import Jobs, specs_of
from gavel.client.jobs.packing import Progress, Uploads, without_uploads
from gavel.client.settings import find_connection
from gavel.client.transport.channels import AsyncTransport
from gavel.client.transport.following import Reading, Waiting
from gavel.client.transport.notices import Tell


class AsyncClient:
    """A connection to a scheduler.

        async with AsyncClient() as client:
            (job,) = await client.submit(JobSpec(command=("python", "train.py"), gpus=4))
            (done,) = await client.wait(job)

    Whom to call: the arguments, the environment, or the file of contexts (`gavel.client.settings`). What does no harm
    twice is asked again for `retry_s` when nobody answers; a submission is safe because of its key. What can go wrong
    is drawn in `gavel.client.errors`; while nobody answers, `on_trouble` is told why and for how many seconds it is
    still tried, and None once it works again. May be used from one event loop.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        context: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S,
        on_trouble: Tell | None = None,
    ) -> None:
        self.connection = find_connection(address, token, ca, context)
        self._wire = AsyncTransport(self.connection, timeout_s, retry_s, on_trouble)

    async def close(self) -> None:
        """Hang up."""
        await self._wire.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def retry_s(self) -> float:
        """For how long a call is tried again that finds nobody."""
        return self._wire.retry_s

    @retry_s.setter
    def retry_s(self, retry_s: float) -> None:
        self._wire.retry_s = retry_s

    @property
    def on_trouble(self) -> Tell | None:
        """Who is told while nobody answers."""
        return self._wire.on_trouble

    @on_trouble.setter
    def on_trouble(self, tell: Tell | None) -> None:
        self._wire.on_trouble = tell

    # --------------------------------------------------------------------------------------------------- jobs

    async def submit(
        self, jobs: Jobs, key: str | None = None, progress: Progress | None = None
    ) -> tuple[str, ...]:
        """The ids of one job, several, or those in a job file: all are taken, or none. Durable when it returns.

        `key`: the same key with the same jobs gives the same ids, however often; one is made up unless given.
        """
        with await asyncio.to_thread(Uploads, specs_of(jobs), progress) as uploads:
            digests = list(uploads.packages)
            there = await self._wire.call(calls.find_packages(digests)) if digests else frozenset[str]()
            for digest in digests:
                if digest not in there:
                    await self._wire.call(calls.upload(digest, partial(uploads.pieces, digest)))
            return await self._wire.call(
                calls.submit(uploads.specs, secrets.token_hex(16) if key is None else key)
            )

    async def preview(self, jobs: Jobs) -> tuple[r.Preview, ...]:
        """What would become of each, without submitting it."""
        found: tuple[r.Preview, ...] = ()
        for some in calls.in_parts(without_uploads(specs_of(jobs))):
            found += await self._wire.call(calls.preview(some))
        return found

    async def get(self, job: str) -> r.Job:
        """One job."""
        return await self._wire.call(calls.get(job))

    async def list(
        self, wanted: JobFilter | None = None, *, page_size: int = 0, brief: bool = False
    ) -> AsyncIterator[r.Job]:
        """Jobs, newest first; pages are fetched as they are needed."""
        token = ""
        while True:
            page = await self._wire.call(calls.list_jobs(wanted or JobFilter(), page_size, token, brief))
            for job in page.jobs:
                yield job
            if not (token := page.next_page_token):
                return

    async def page(
        self, wanted: JobFilter | None = None, *, size: int = 0, token: str = "", brief: bool = False
    ) -> r.JobPage:
        """One page of them, with the token of the next and how many there are in all."""
        return await self._wire.call(calls.list_jobs(wanted or JobFilter(), size, token, brief))

    def watch(
        self, wanted: JobFilter | None = None, *, skip_present: bool = False, patience_s: float = 0.0
    ) -> AsyncIterator[r.JobEvent]:
        """Jobs as they are, then each change.

        A connection that is lost ends it with an error; with `patience_s` a scheduler may be away for so long, and then
        it begins anew: jobs as they are, to the event `all_present`, then each change.
        """
        return self._wire.follow(calls.watching(wanted or JobFilter(), skip_present), patience_s)

    async def wait(
        self,
        jobs: str | Iterable[str],
        *,
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
        hear: Callable[[r.Job], None] | None = None,
    ) -> tuple[r.Job, ...]:
        """Until all of these jobs or arrays have ended; a scheduler may be away for `patience_s` in between.

        `hear` is told each job as it is, and again when it has changed. TimeoutError after `timeout_s`.
        """
        waiting = Waiting([jobs] if isinstance(jobs, str) else jobs)
        if waiting.is_empty:
            return ()
        async with aclosing(self._wire.follow(waiting.call, patience_s, timeout_s)) as events:
            async for event in events:
                waiting.hear(event)
                if hear is not None and event.job is not None:
                    hear(event.job)
                if waiting.is_over:
                    break
        return waiting.jobs

    async def cancel(self, job: str) -> tuple[str, ...]:
        """Of a job or an array; the jobs that it concerned."""
        return await self._wire.call(calls.command(job, "cancel"))

    async def hold(self, job: str) -> tuple[str, ...]:
        """It waits, until somebody releases it."""
        return await self._wire.call(calls.command(job, "hold"))

    async def release(self, job: str) -> tuple[str, ...]:
        """It may run again."""
        return await self._wire.call(calls.command(job, "release"))

    async def requeue(self, job: str) -> tuple[str, ...]:
        """It stops, and waits for its next turn."""
        return await self._wire.call(calls.command(job, "requeue"))

    async def explain(self, job: str) -> r.Explanation:
        """Why it is where it is."""
        return await self._wire.call(calls.explain(job))

    async def logs(
        self,
        job: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> AsyncIterator[r.LogChunk]:
        """What it printed, over all attempts unless one is named; with `follow` until it has ended for good."""
        reading = Reading(job, attempt, rank, tail, follow)
        chunks = self._wire.follow(reading.call, patience_s) if follow else self._wire.stream(reading.call())
        async with aclosing(chunks) as open_chunks:
            async for chunk in open_chunks:
                if (fresh := reading.fresh(chunk)) is not None:
                    yield fresh

    # ------------------------------------------------------------------------------------------------ the cluster

    async def status(self) -> r.Status:
        """How the scheduler is."""
        return await self._wire.call(calls.status())

    async def nodes(self, names: Sequence[str] = ()) -> tuple[r.Node, ...]:
        """All nodes, or those that are named."""
        return await self._wire.call(calls.nodes(names))

    async def drain(self, node: str) -> r.Node:
        """It finishes what it has, and gets nothing new."""
        return await self._wire.call(calls.command_node(node, "drain"))

    async def resume(self, node: str) -> r.Node:
        """It gets jobs again."""
        return await self._wire.call(calls.command_node(node, "resume"))

    async def remove(self, node: str) -> r.Node:
        """It is gone for good."""
        return await self._wire.call(calls.command_node(node, "remove"))

    async def policy(self) -> r.Policy:
        """Which policy divides the cluster, and which could."""
        return await self._wire.call(calls.policy())

    async def set_policy(self, spec: str) -> r.Policy:
        """Another one, from the next allocation on."""
        return await self._wire.call(calls.set_policy(spec))

    async def allocation(self) -> r.Allocation:
        """Who is entitled to how much, as solved last."""
        return await self._wire.call(calls.allocation())

    def rounds(self, *, follow: bool = True) -> AsyncIterator[r.Round]:
        """The round that runs, and with `follow` each one as it is planned."""
        return self._wire.stream(calls.rounds(follow))

    async def usage(
        self,
        by: By = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str = "",
    ) -> tuple[r.UsageRow, ...]:
        """GPU time and cost."""
        return await self._wire.call(calls.usage(by, since, until, user))

    async def set_prices(self, prices: Mapping[str, float]) -> Mapping[str, float]:
        """Per GPU and hour, of these worker types; all prices as they are then."""
        return await self._wire.call(calls.set_prices(prices))

    async def rates(self, job_type: str = "") -> tuple[r.Rate, ...]:
        """How fast jobs run, as believed."""
        return await self._wire.call(calls.rates(job_type))

    # ----------------------------------------------------------------------------------------------------- access

    async def who_am_i(self) -> r.Identity:
        """Who the scheduler takes you for."""
        return await self._wire.call(calls.who_am_i())

    async def create_token(
        self, user: str = "", role: r.Role = r.Role.USER, *, valid_s: float = 0.0, note: str = ""
    ) -> r.NewToken:
        """For oneself, or for others by an admin; its secret is told once."""
        return await self._wire.call(calls.create_token(user, role, valid_s, note))

    async def tokens(self, user: str = "") -> tuple[r.Token, ...]:
        """One's own; all, or somebody's, for admins."""
        return await self._wire.call(calls.list_tokens(user))

    async def revoke_token(self, token: str) -> r.Token:
        """By its id."""
        return await self._wire.call(calls.revoke_token(token))

    async def create_join_token(self, node: str = "", *, valid_s: float = 0.0) -> r.JoinToken:
        """With which one node gets its certificate, once."""
        return await self._wire.call(calls.create_join_token(node, valid_s))

    async def revoke_node(self, node: str) -> r.RevokedNode:
        """No certificate that this node has got so far counts any more, nor a join token for it; its link ends."""
        return await self._wire.call(calls.revoke_node(node))

    async def revoked_nodes(self) -> tuple[r.NodeRevocation, ...]:
        """Nodes that were revoked, by name."""
        return await self._wire.call(calls.revoked_nodes())

    async def unrevoke_node(self, node: str) -> str:
        """Take a revocation back: every certificate that this node has ever got counts again; its name."""
        return await self._wire.call(calls.unrevoke_node(node))

    # ----------------------------------------------------------------------------------------------------- upkeep

    async def backup(self, path: str | os.PathLike[str], packages: bool = False) -> int:
        """The scheduler's data directory into one file, for `gavel restore`; its size. For admins: keys are in it.

        A file of that name is replaced when the new one is whole. OSError when it cannot be written.
        """
        with Saving(path) as file:
            async with aclosing(self._wire.stream(calls.backup(packages))) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
        return file.size_bytes
