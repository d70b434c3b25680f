"""The client for programs that wait for each answer. `gavel.client.aio` is its twin; what calls mean is in `calls`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from gavel.client import calls
from gavel.client import results as r
from gavel.client.atomic_file import Saving
from gavel.client.calls import By, JobFilter
from gavel.client.jobs.intake import Jobs, specs_of
from gavel.client.jobs.packing import Progress, Uploads, without_uploads
from gavel.client.settings import find_connection
from gavel.client.transport.channels import SyncTransport
from gavel.client.transport.following import Reading, Waiting
from gavel.client.transport.notices import Tell

TIMEOUT_S, RETRY_S, PATIENCE_S = 30.0, 15.0, 600.0


class Client:
    """A connection to a scheduler.

        with Client() as client:
            (job,) = client.submit(JobSpec(command=("python", "train.py"), gpus=4))
            (done,) = client.wait(job)

    Whom to call: the arguments, the environment, or the file of contexts (`gavel.client.settings`). What does no harm
    twice is asked again for `retry_s` when nobody answers; a submission is safe because of its key. What can go wrong
    is drawn in `gavel.client.errors`; while nobody answers, `on_trouble` is told why and for how many seconds it is
    still tried, and None once it works again. May be used from several threads.
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
        self._wire = SyncTransport(self.connection, timeout_s, retry_s, on_trouble)

    def close(self) -> None:
        """Hang up."""
        self._wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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

    def submit(self, jobs: Jobs, key: str | None = None, progress: Progress | None = None) -> tuple[str, ...]:
        """The ids of one job, several, or those in a job file: all are taken, or none. Durable when it returns.

        `key`: the same key with the same jobs gives the same ids, however often; one is made up unless given.
        """
        with Uploads(specs_of(jobs), progress) as uploads:
            digests = list(uploads.packages)
            there = self._wire.call(calls.find_packages(digests)) if digests else frozenset[str]()
            for digest in digests:
                if digest not in there:
                    self._wire.call(calls.upload(digest, partial(uploads.pieces, digest)))
            return self._wire.call(calls.submit(uploads.specs, secrets.token_hex(16) if key is None else key))

    def preview(self, jobs: Jobs) -> tuple[r.Preview, ...]:
        """What would become of each, without submitting it."""
        found: tuple[r.Preview, ...] = ()
        for some in calls.in_parts(without_uploads(specs_of(jobs))):
            found += self._wire.call(calls.preview(some))
        return found

    def get(self, job: str) -> r.Job:
        """One job."""
        return self._wire.call(calls.get(job))

    def list(
        self, wanted: JobFilter | None = None, *, page_size: int = 0, brief: bool = False
    ) -> Iterator[r.Job]:
        """Jobs, newest first; pages are fetched as they are needed."""
        token = ""
        while True:
            page = self._wire.call(calls.list_jobs(wanted or JobFilter(), page_size, token, brief))
            yield from page.jobs
            if not (token := page.next_page_token):
                return

    def page(
        self, wanted: JobFilter | None = None, *, size: int = 0, token: str = "", brief: bool = False
    ) -> r.JobPage:
        """One page of them, with the token of the next and how many there are in all."""
        return self._wire.call(calls.list_jobs(wanted or JobFilter(), size, token, brief))

    def watch(
        self, wanted: JobFilter | None = None, *, skip_present: bool = False, patience_s: float = 0.0
    ) -> Iterator[r.JobEvent]:
        """Jobs as they are, then each change.

        A connection that is lost ends it with an error; with `patience_s` a scheduler may be away for so long, and then
        it begins anew: jobs as they are, to the event `all_present`, then each change.
        """
        return self._wire.follow(calls.watching(wanted or JobFilter(), skip_present), patience_s)

    def wait(
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
        for event in self._wire.follow(waiting.call, patience_s, timeout_s):
            waiting.hear(event)
            if hear is not None and event.job is not None:
                hear(event.job)
            if waiting.is_over:
                break
        return waiting.jobs

    def cancel(self, job: str) -> tuple[str, ...]:
        """Of a job or an array; the jobs that it concerned."""
        return self._wire.call(calls.command(job, "cancel"))

    def hold(self, job: str) -> tuple[str, ...]:
        """It waits, until somebody releases it."""
        return self._wire.call(calls.command(job, "hold"))

    def release(self, job: str) -> tuple[str, ...]:
        """It may run again."""
        return self._wire.call(calls.command(job, "release"))

    def requeue(self, job: str) -> tuple[str, ...]:
        """It stops, and waits for its next turn."""
        return self._wire.call(calls.command(job, "requeue"))

    def explain(self, job: str) -> r.Explanation:
        """Why it is where it is."""
        return self._wire.call(calls.explain(job))

    def logs(
        self,
        job: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[r.LogChunk]:
        """What it printed, over all attempts unless one is named; with `follow` until it has ended for good."""
        reading = Reading(job, attempt, rank, tail, follow)
        chunks = self._wire.follow(reading.call, patience_s) if follow else self._wire.stream(reading.call())
        for chunk in chunks:
            if (fresh := reading.fresh(chunk)) is not None:
                yield fresh

    # ------------------------------------------------------------------------------------------------ the cluster

    def status(self) -> r.Status:
        """How the scheduler is."""
        return self._wire.call(calls.status())

    def nodes(self, names: Sequence[str] = ()) -> tuple[r.Node, ...]:
        """All nodes, or those that are named."""
        return self._wire.call(calls.nodes(names))

    def drain(self, node: str) -> r.Node:
        """It finishes what it has, and gets nothing new."""
        return self._wire.call(calls.command_node(node, "drain"))

    def resume(self, node: str) -> r.Node:
        """It gets jobs again."""
        return self._wire.call(calls.command_node(node, "resume"))

    def remove(self, node: str) -> r.Node:
        """It is gone for good."""
        return self._wire.call(calls.command_node(node, "remove"))

    def policy(self) -> r.Policy:
        """Which policy divides the cluster, and which could."""
        return self._wire.call(calls.policy())

    def set_policy(self, spec: str) -> r.Policy:
        """Another one, from the next allocation on."""
        return self._wire.call(calls.set_policy(spec))

    def allocation(self) -> r.Allocation:
        """Who is entitled to how much, as solved last."""
        return self._wire.call(calls.allocation())

    def rounds(self, *, follow: bool = True) -> Iterator[r.Round]:
        """The round that runs, and with `follow` each one as it is planned."""
        return self._wire.stream(calls.rounds(follow))

    def usage(
        self,
        by: By = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str = "",
    ) -> tuple[r.UsageRow, ...]:
        """GPU time and cost."""
        return self._wire.call(calls.usage(by, since, until, user))

    def set_prices(self, prices: Mapping[str, float]) -> Mapping[str, float]:
        """Per GPU and hour, of these worker types; all prices as they are then."""
        return self._wire.call(calls.set_prices(prices))

    def rates(self, job_type: str = "") -> tuple[r.Rate, ...]:
        """How fast jobs run, as believed."""
        return self._wire.call(calls.rates(job_type))

    # ----------------------------------------------------------------------------------------------------- access

    def who_am_i(self) -> r.Identity:
        """Who the scheduler takes you for."""
        return self._wire.call(calls.who_am_i())

    def create_token(
        self, user: str = "", role: r.Role = r.Role.USER, *, valid_s: float = 0.0, note: str = ""
    ) -> r.NewToken:
        """For oneself, or for others by an admin; its secret is told once."""
        return self._wire.call(calls.create_token(user, role, valid_s, note))

    def tokens(self, user: str = "") -> tuple[r.Token, ...]:
        """One's own; all, or somebody's, for admins."""
        return self._wire.call(calls.list_tokens(user))

    def revoke_token(self, token: str) -> r.Token:
        """By its id."""
        return self._wire.call(calls.revoke_token(token))

    def create_join_token(self, node: str = "", *, valid_s: float = 0.0) -> r.JoinToken:
        """With which one node gets its certificate, once."""
        return self._wire.call(calls.create_join_token(node, valid_s))

    def revoke_node(self, node: str) -> r.RevokedNode:
        """No certificate that this node has got so far counts any more, nor a join token for it; its link ends."""
        return self._wire.call(calls.revoke_node(node))

    def revoked_nodes(self) -> tuple[r.NodeRevocation, ...]:
        """Nodes that were revoked, by name."""
        return self._wire.call(calls.revoked_nodes())

    def unrevoke_node(self, node: str) -> str:
        """Take a revocation back: every certificate that this node has ever got counts again; its name."""
        return self._wire.call(calls.unrevoke_node(node))

    # ----------------------------------------------------------------------------------------------------- upkeep

    def backup(self, path: str | os.PathLike[str], packages: bool = False) -> int:
        """The scheduler's data directory into one file, for `gavel restore`; its size. For admins: keys are in it.

        A file of that name is replaced when the new one is whole. OSError when it cannot be written.
        """
        with Saving(path) as file:
            for piece in self._wire.stream(calls.backup(packages)):
                file.write(piece)
        return file.size_bytes
