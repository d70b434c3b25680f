"""Jobs that a job waits for: `after` in Python, in job files and on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from gavel.client.jobs.values import Kind, name_of, nested, text_of
from gavel.client.jobs.yaml import Wrong, pairs
from protos.files.yaml import List, Node, Table


@dataclass(frozen=True, slots=True)
class After:
    """Wait for another job: until it has succeeded, or until it has ended one way or another."""

    job: str
    when: Literal["succeeded", "ended"] = "succeeded"


_when = partial(text_of, wanted="succeeded or ended")


def _after(node: Node) -> tuple[After, ...]:
    """Read `17`, `[17, {job: 18, when: ended}]`, or `17:ended` as the command line has it."""
    parts = node.value if isinstance(node, List) else [node]
    return tuple([nested(f"[{at}]", _one_after, part) for at, part in enumerate(parts)])


_SLURM_AFTER = {"afterok": "", "afterany": ":ended"}


def _one_after(node: Node) -> After:
    if isinstance(node, Table):
        entries = pairs(node, "a job")
        for name, (key, _) in entries.items():
            if name not in ("job", "when"):
                raise Wrong(key, "must have job and when only", name)
        if "job" not in entries:
            raise Wrong(node, "job is missing: {job: 17, when: ended}")
        job = nested("job", name_of, entries["job"][1])
        when = nested("when", _when, entries["when"][1]) if "when" in entries else "succeeded"
    else:
        job, colon, when = name_of(node, "the id of a job").rpartition(":")
        if not colon:
            job, when = when, "succeeded"
    if job in _SLURM_AFTER:
        raise Wrong(node, f"here {job}:{when[:60]} is {when[:60]}{_SLURM_AFTER[job]}")
    if when not in ("succeeded", "ended"):
        raise Wrong(node, f'when must be "succeeded" or "ended", got "{when[:60]}"')
    return After(job, when)  # type: ignore[arg-type]


_ONE_AFTER = {
    "anyOf": [
        {"type": ["string", "integer"]},
        {
            "type": "object",
            "properties": {"job": {"type": ["string", "integer"]}, "when": {"enum": ["succeeded", "ended"]}},
            "required": ["job"],
            "additionalProperties": False,
        },
    ]
}
AFTER = Kind("jobs", _after, {"anyOf": [*_ONE_AFTER["anyOf"], {"type": "array", "items": _ONE_AFTER}]})
