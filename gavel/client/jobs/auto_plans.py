"""Automatic plans, `plan: {auto: model.profile.json, batch: 64}`: how users write them, and how a job remembers them.

`gavel.client.plans.planning` computes the plans.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gavel.client.jobs import values as v
from gavel.client.jobs.plan_file import PROFILE, json_text, read_document
from gavel.client.jobs.spec import AutoPlans, JobSpec
from protos.files.errors import BadInput, printable
from protos.files.nodes import Node, Table

EXAMPLE = "{auto: model.profile.json, batch: 64}"
SCHEDULES = ("1f1b", "interleaved", "gpipe", "2bw", "stash")
# The greatest batch, and the greatest number in the shape of a transformer.
NUMBER_MAX = 1_000_000
# The keys of a shape in job files, as `gavel plan --gpt` has them, and the fields of a transformer.
_SHAPE = {"layers": "layers", "hidden": "hidden", "heads": "heads", "seq": "sequence", "vocab": "vocabulary"}
_SHAPE_EXAMPLE = "{layers: 24, hidden: 2304, heads: 24, seq: 2048, vocab: 51200}"


def plan_value(node: Node) -> str | AutoPlans:
    """Read the name of a file with plans, an empty text for `none`, or a description of automatic plans."""
    if isinstance(node, Table):
        parts = v.entries(node, tuple(_READERS), ("auto", "batch"), EXAMPLE)
        values = {key: v.read_part(key, _READERS[key], part) for key, part in parts.items()}
        return AutoPlans(values.pop("auto"), **values)
    name = v.name_of(node, f"the name of a file with plans, {EXAMPLE}, or none")
    if name == "auto":
        raise BadInput(f"auto needs a model and the samples of an update: {EXAMPLE}")
    return "" if name == "none" else name


def _model(node: Node) -> str | dict[str, int]:
    if not isinstance(node, Table):
        return v.name_of(node, f"the name of a profile, or a shape such as {_SHAPE_EXAMPLE}")
    parts = v.entries(node, tuple(_SHAPE), tuple(_SHAPE), _SHAPE_EXAMPLE)
    return {_SHAPE[key]: v.read_part(key, _COUNT, part) for key, part in parts.items()}


_COUNT = v.whole(1, NUMBER_MAX)
_READERS: dict[str, v.Read] = {
    "auto": _model,
    "batch": _COUNT,
    "max_tensor": _COUNT,
    "schedule": v.choice(*SCHEDULES),
}


def checked(auto: AutoPlans) -> AutoPlans:
    """Return a description from Python with the content of its profile. Raises BadInput."""
    for name in ("batch", "max_tensor"):
        value = getattr(auto, name)
        if (type(value) is not int or not 1 <= value <= NUMBER_MAX) and (value, name) != (None, "max_tensor"):
            problem = f"must be a whole number from 1 to {NUMBER_MAX:,}, got {value!r:.60}"
            raise BadInput(problem, place=(name,))
    if auto.schedule and auto.schedule not in SCHEDULES:
        raise BadInput(f"must be {' or '.join(SCHEDULES)}, got {auto.schedule!r:.60}", place=("schedule",))
    if not isinstance(auto.model, str | os.PathLike | Mapping):
        raise BadInput("must be the name or the content of a profile, or a shape", place=("auto",))
    if isinstance(auto.model, Mapping) and any(
        type(n) is int and n > NUMBER_MAX for n in auto.model.values()
    ):
        raise BadInput(f"has a number above {NUMBER_MAX:,}", place=("auto",))
    return with_model(auto, Path())


def with_model(auto: AutoPlans, folder: Path) -> AutoPlans:
    """Return the description with the content of its profile, whose name is relative to `folder`. Raises BadInput."""
    if isinstance(auto.model, Mapping):
        return auto
    path = folder / os.path.expanduser(auto.model)
    try:
        document = read_document(path)
    except BadInput as error:
        raise BadInput(error.problem, place=("auto",)) from None
    if not isinstance(document, dict) or document.get("format") != PROFILE:
        problem = f"is '{printable(str(path))}', which is not a profile: `gavel profile` makes one"
        raise BadInput(problem, place=("auto",))
    return replace(auto, model=document)


def source_of(auto: AutoPlans, spec: JobSpec) -> str:
    """Return the text by which a job remembers how its plans were computed. Raises BadInput."""
    widths = (spec.gpus, spec.gpus_min, spec.gpus_max)
    source = {
        "model": auto.model,
        "batch": auto.batch,
        "max_tensor": auto.max_tensor,
        "schedule": auto.schedule,
        "gpus": None if spec.gpus is None else widths,
    }
    return json_text(source, "auto")


def auto_of(plans_from: str) -> tuple[AutoPlans, bool]:
    """Return the description in such a text, and whether the user left the number of GPUs open. Raises ValueError."""
    import json

    try:
        source: Any = json.loads(plans_from)
        # Any client may have written the text: it must not make this one read a file.
        auto = AutoPlans(dict(source["model"]), source["batch"], source["max_tensor"], source["schedule"])
        return checked(auto), source["gpus"] is None
    except (BadInput, KeyError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
