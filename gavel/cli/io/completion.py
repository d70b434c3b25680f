"""Completion on Tab: of jobs, nodes, worker types, policies and contexts.

The scheduler is asked, with a short deadline. On any trouble nothing is offered and nothing is printed, because a
message would disturb the line that the user is typing. Names come from other users, and a shell inserts them as they
are: only names without special characters are offered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gavel.cli.io.quiet_grpc import load_quiet_grpc

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gavel.client import Client, Job

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]
# A word and a note about it.
Offer = tuple[str, str]
# How long each of at most three calls may take.
DEADLINE_S = 1.0
UNFINISHED = ("running", "queued", "preempted", "held")
# The most jobs that are read, newest first.
JOBS_READ = 1000
# Words that mean themselves in every shell, and that no command takes for an option.
_PLAIN = re.compile(r"[\w@+./][\w@+./-]*")


def _from_scheduler(offers: Callable[[Client, str], Iterator[Offer]]) -> Complete:
    """Return a completion that asks the scheduler of the command line; words that are already there are not offered."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        # Whatever goes wrong, from a wrong address to a damaged settings file, the user is only typing.
        try:
            with _client(context) as client:
                listed = list(offers(client, incomplete))
        except Exception:
            return []
        return _items(listed, incomplete, context.params.get(parameter.name or "") or ())

    return complete


def _client(context: click.Context) -> Client:
    load_quiet_grpc()
    from gavel.client import Client

    address, name = context.params.get("address"), context.params.get("context")
    return Client(address, context=name, timeout_s=DEADLINE_S, retry_s=0.0)


def _items(offers: Sequence[Offer], incomplete: str, present: Sequence[str]) -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(word, help=note if note.isprintable() else None)
        for word, note in dict(offers).items()
        if word.startswith(incomplete) and word not in present and _PLAIN.fullmatch(word)
    ]


def complete_jobs(states: Sequence[str] = (), *, to_change: bool = False) -> Complete:
    """Return the completion of ids and names of jobs: in one of these states or, without states, of all.

    The user's own jobs are offered or, if none fits, those of all users. `to_change`: the command changes the jobs;
    only operators change those of others.
    """

    def offers(client: Client, incomplete: str) -> Iterator[Offer]:
        identity = client.who_am_i()
        only_own = to_change and identity.role not in ("operator", "admin")
        for user in (identity.user,) if only_own else (identity.user, ""):
            jobs = _jobs(client, states, user, incomplete)
            yield from jobs
            if jobs:
                return

    return _from_scheduler(offers)


def _jobs(client: Client, states: Sequence[str], user: str, incomplete: str) -> list[Offer]:
    """Return the ids, then the names that mean one job, of those jobs whose id or name begins like this."""
    from gavel.client import JobFilter

    # The filter takes a pattern; ids cannot be filtered.
    pattern = f"{incomplete}*" if _PLAIN.fullmatch(incomplete) and not incomplete[0].isdigit() else ""
    job_filter = JobFilter(states=states, user=user, name=pattern)
    read = client.page(job_filter, size=JOBS_READ, brief=True).jobs
    # The members of an array are offered only after its id and an underscore.
    jobs: dict[str, Job] = {}
    for job in read:
        jobs.setdefault(job.id if "_" in incomplete else job.id.partition("_")[0], job)
    counts = Counter(job.spec.name for job in jobs.values())
    offers = [(number, f"{job.spec.name} {job.state}".strip()) for number, job in jobs.items()]
    offers += [
        (job.spec.name, f"job {number} {job.state}")
        for number, job in jobs.items()
        if counts[job.spec.name] == 1
    ]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def _nodes(client: Client, incomplete: str) -> Iterator[Offer]:
    for node in client.nodes():
        yield node.name, f"{node.worker_type} {node.state}"


def _worker_types(client: Client, incomplete: str) -> Iterator[Offer]:
    counts = Counter[str]()
    for node in client.nodes():
        counts[node.worker_type] += len(node.gpus)
    for worker_type, gpus in sorted(counts.items()):
        yield worker_type, f"{gpus} GPUs"


def _policies(client: Client, incomplete: str) -> Iterator[Offer]:
    policy = client.policy()
    for name in policy.available:
        yield name, "in force" if name == policy.policy else ""


complete_nodes = _from_scheduler(_nodes)
complete_worker_types = _from_scheduler(_worker_types)
complete_policies = _from_scheduler(_policies)


def complete_contexts(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete the name of a stored cluster."""
    import os

    try:
        from gavel.client.settings import config_path, read_contexts

        stored = read_contexts(config_path(os.environ)).contexts
    # The file may be damaged.
    except Exception:
        return []
    return _items([(name, entry.address) for name, entry in stored.items()], incomplete, ())
