"""The changes of a job that was submitted earlier: fields of JobSpec, as the message JobChanges has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gavel.client.errors import InvalidJob
from gavel.client.jobs.errors import field_at
from gavel.client.jobs.kinds import FIELD_KINDS, quoted
from gavel.client.jobs.spec import AutoPlans
from gavel.client.jobs.values import read_part
from protos.files.errors import BadInput

# Limits that None removes.
REMOVABLE = ("time_limit_s", "deadline_s", "max_cost")
CHANGEABLE = (
    "name",
    "weight",
    "tenant",
    "gpus",
    "gpus_min",
    "gpus_max",
    "gpus_together",
    "worker_types",
    "retries",
    "plans",
    "plans_from",
    *REMOVABLE,
)


def changes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the message JobChanges. Raises InvalidJob for a field that cannot change or does not fit."""
    unknown = [name for name in values if name not in CHANGEABLE]
    if unknown:
        raise InvalidJob(f"cannot be changed; {', '.join(CHANGEABLE)} can", field=unknown[0])
    if isinstance(values.get("plans"), AutoPlans):
        raise InvalidJob(
            "are computed at submission and by `gavel plan --refresh`: give a file", field="plans"
        )
    present = {name: value for name, value in values.items() if value is not None}
    remove = [name for name in values if name not in present]
    fixed = [name for name in remove if name not in REMOVABLE and name not in ("gpus_min", "gpus_max")]
    if fixed:
        raise InvalidJob(f"must have a value, got {quoted(None)}", field=fixed[0])
    try:
        changes = {name: read_part(name, FIELD_KINDS[name].check, value) for name, value in present.items()}
    except BadInput as error:
        raise InvalidJob(error.problem, field=field_at(error.place)) from None
    if "plans" in changes:
        # Plans that are given replace computed ones.
        changes = {"plans_from": "", **changes, "plans": {"plans": [asdict(p) for p in changes["plans"]]}}
    if "worker_types" in changes:
        changes["worker_types"] = {"names": changes["worker_types"]}
    removed = [name for name in remove if name in REMOVABLE]
    return changes | ({"remove": removed} if removed else {})
