"""Descriptions of what users changed about a job after its submission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from scheduler.explain.answer import Updated
from scheduler.explain.wording import listed, span
from scheduler.model.changes import JobChanges
from scheduler.model.jobs import Job


def updates_of(job: Job) -> tuple[Updated, ...]:
    """Return the latest updates of a job, the newest last."""
    return tuple(
        Updated(at_s=update.at_s, by=update.by, text=_text(update.before, update.changes))
        for update in job.updates
    )


def _text(before: JobChanges, changes: JobChanges) -> str:
    """Return each changed field with its values before and after: "weight 1 → 3, time_limit none → 2 h"."""
    texts = []
    for field, (name, form) in _FORMS.items():
        old, new = getattr(before, field), getattr(changes, field)
        if new is not UNSET:
            texts.append(f"{name} {form(old)} → {form(new)}")
    return ", ".join(texts)


def _or_none(form: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "none" if value is None else form(value)


def _number(value: float) -> str:
    return f"{value:g}"


def _quoted(text: str) -> str:
    return f"'{text}'" if text else "none"


# The name in job files of each field that can change, and how to format its values.
_FORMS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "name": ("name", _quoted),
    "weight": ("weight", _number),
    "tenant": ("tenant", _quoted),
    "gpus": ("gpus", str),
    "gpus_min": ("the least gpus", _or_none(str)),
    "gpus_max": ("the most gpus", _or_none(str)),
    "gpus_together": ("gpus_together", str),
    "worker_types": ("worker_types", lambda names: listed(names) if names else "any"),
    "retries": ("retries", str),
    "time_limit_s": ("time_limit", _or_none(span)),
    "deadline_s": ("deadline (after the submission)", _or_none(span)),
    "max_cost": ("max_cost", _or_none(_number)),
    "plans": ("plans", lambda plans: str(len(plans))),
    "plans_from": ("plan", lambda source: "auto" if source else "as given"),
}
