"""Resolve the names of jobs in `--after` and in the `after` of job files to ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import say
from gavel.client import After, Client, JobFilter, JobSpec
from gavel.client.jobs.errors import objection
from gavel.client.jobs.ids import array_of, is_id
from gavel.client.results import ACTIVE
from gavel.client.views.job_text import few

SHOWN = 5


class UnclearName(ValueError):
    """The name means no job, or more than one."""


def with_dependency_ids(
    client: Client, specs: Sequence[JobSpec], *, from_option: bool, has_key: bool = False
) -> tuple[JobSpec, ...]:
    """Return the jobs with each name in `after` replaced by the id of the only unfinished job of that name.

    `from_option`: the names come from the command line. `has_key`: with --key, the submission may be repeated, and a
    name could then mean another job or none, so only ids are accepted.
    """
    names, name_counts = _Names(client, has_key), Counter(spec.name for spec in specs)

    def with_id(spec: JobSpec, after: After) -> After:
        others = name_counts[after.job] - (after.job == spec.name)
        return replace(after, job=names.id_of(after.job, spec.user, others))

    resolved = []
    for spec in specs:
        try:
            resolved.append(replace(spec, after=tuple(with_id(spec, after) for after in spec.after)))
        except UnclearName as unclear:
            if from_option:
                raise Fault(f"--after: {unclear}") from None
            raise objection(spec, "after", str(unclear)) from None
    return tuple(resolved)


class _Names:
    """The ids of jobs by name; each name is looked up once, and the user sees its id."""

    def __init__(self, client: Client, has_key: bool) -> None:
        self._client, self._has_key = client, has_key
        # The user who submits; asked for when needed.
        self._caller = ""
        self._ids: dict[tuple[str, str], str] = {}

    def id_of(self, job: str, user: str, others: int) -> str:
        """Return the id of the job. `others`: how many other jobs of this name are in the same submission."""
        if is_id(job):
            return job
        if others:
            raise UnclearName(
                f"'{job}' is submitted together with this job and has no id yet: submit it first"
            )
        if self._has_key:
            raise UnclearName(
                f"must be the id of a job with --key: the name '{job}' may mean another job next time"
            )
        if not user:
            user = self._caller = self._caller or self._client.who_am_i().user
        if (user, job) not in self._ids:
            self._ids[user, job] = self._only(job, user)
            say(f"after '{job}': job {self._ids[user, job]}")
        return self._ids[user, job]

    def _only(self, name: str, user: str) -> str:
        jobs = self._client.list(JobFilter(states=ACTIVE, user=user), brief=True)
        # Name and state by id. The members of an array share one entry, under the id of the array.
        jobs_with_name: dict[str, tuple[str, str]] = {}
        for job in jobs:
            if job.spec.name:
                jobs_with_name[array_of(job.id)] = (job.spec.name, job.state.value)
        same_name = [job for job, (other, _) in jobs_with_name.items() if other == name]
        if len(same_name) == 1:
            return same_name[0]
        if same_name:
            listed = few([f"{job} ({jobs_with_name[job][1]})" for job in same_name], SHOWN)
            raise UnclearName(
                f"{len(same_name)} unfinished jobs of {user} are called '{name}'; give the id of one: {listed}"
            )
        import difflib

        similar_names = difflib.get_close_matches(
            name, [other for other, _ in jobs_with_name.values()], n=SHOWN, cutoff=0.5
        )
        candidates = [job for job, (other, _) in jobs_with_name.items() if other in similar_names] or list(
            jobs_with_name
        )
        listed = few([f"{job} ({jobs_with_name[job][0]})" for job in candidates], SHOWN)
        hint = f"; there are {listed}" if listed else ""
        raise UnclearName(
            f"must be the id of a job, or the name of an unfinished job of {user}; "
            f"none is called '{name}'{hint}"
        )
