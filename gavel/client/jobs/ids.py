"""Ids of jobs and arrays, as text: `17`, and `17_3` for a job of array 17."""

from __future__ import annotations


def is_id(text: str) -> bool:
    """Return whether this is the id of a job or array, such as `17` or `17_3`, rather than a name."""
    return text.isascii() and text.replace("_", "", 1).isdigit()


def array_of(job: str) -> str:
    """Return the id of the array to which a job belongs, or the job's own id if it is in no array."""
    return job.partition("_")[0]
