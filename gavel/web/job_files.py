"""Job files that are sent to the gateway: read without touching any file of its machine."""

from __future__ import annotations

from collections.abc import Sequence

from gavel.client.errors import InvalidJob
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.spec import JobSpec
from gavel.client.reading import spec_to_proto
from protos.gavel.v1 import jobs_pb2

# The types of YAML that browsers and programs send.
YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/vnd.yaml")
NAME = "job file"
# A larger file takes too long to read for a program that serves others meanwhile.
FILE_BYTES_MAX = 2**20


def jobs_in(raw: bytes) -> tuple[Sequence[JobSpec], list[jobs_pb2.JobSpec]]:
    """Return the jobs in a job file, also as messages. Raises InvalidJob with the line and the field at fault."""
    specs = specs_in(raw)
    return specs, messages_of(specs)


def specs_in(raw: bytes) -> tuple[JobSpec, ...]:
    """Return the jobs in a job file. Raises InvalidJob with the line and the field at fault."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidJob("not UTF-8 text", file=NAME, line=raw.count(b"\n", 0, error.start) + 1) from None
    return parse_jobs(text, NAME, None)


def messages_of(specs: Sequence[JobSpec]) -> list[jobs_pb2.JobSpec]:
    """Return jobs as messages. Raises InvalidJob."""
    try:
        return [spec_to_proto(spec) for spec in specs]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidJob(f"a value does not fit its field: {error}", file=NAME) from None
