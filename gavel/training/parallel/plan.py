"""A plan: how a model is split over the ranks of a job. `gavel plan` writes plans; `GAVEL_PLAN` names the lease's one.

    {"format": "gavel-plan/1", "schedule": "1f1b", "pipeline": 4, "data": 2, "microbatch": 8}

`microbatch` counts samples. Further fields have defaults; fields that only schedulers and planners need are ignored.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable

from gavel.training.environment import ranks_of
from gavel.training.errors import PlanError
from gavel.training.parallel.actions import Schedule

FORMAT = "gavel-plan/1"
FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class Plan:
    """How a model is split: in depth over `pipeline` ranks, in copies over `data`, within layers over `tensor`."""

    schedule: str = "1f1b"
    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    # The samples of a microbatch on one rank; None: one microbatch an update.
    microbatch: int | None = None
    chunks: int = 1
    # Whether activations are computed again in the backward pass, so that only the inputs of layers are kept.
    recompute: bool = False
    # The number of layers of each stage; None: as equal as possible.
    stages: tuple[int, ...] | None = None
    # The names of the layers of the model that the plan was made for; None: any model.
    layers: tuple[str, ...] | None = None

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.pipeline * self.data * self.tensor

    def schedule_for(self, samples: int) -> Schedule:
        """Return the schedule for batches of so many samples; raise PlanError if they cannot be divided."""
        microbatch = self.microbatch or max(1, samples // self.data)
        parts = self.data * microbatch
        if samples % parts or not samples:
            least = max(1, samples // parts)
            raise PlanError(
                f"a batch of {samples} samples: with data {self.data} and microbatch {microbatch} it has to be a "
                f"multiple of {parts}; nearest: {least * parts}, {(least + 1) * parts}; or drop the last batch"
            )
        return Schedule(self.schedule, self.pipeline, samples // parts, self.chunks).check()

    def layers_of_stages(self, names: Sequence[str]) -> list[range]:
        """Return the layers of each stage, by index; raise PlanError if the plan is not one for these layers."""
        if self.layers is not None and self.layers != tuple(names):
            _refuse_other_model(self.layers, names)
        stages, layers = self.pipeline * self.chunks, len(names)
        if stages > layers:
            raise PlanError(
                f"pipeline {self.pipeline} × chunks {self.chunks} are {stages} stages, but the model has {layers} "
                f"layers: cut it into at most {layers}"
            )
        if self.stages is not None:
            counts = self.stages
            if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
                raise PlanError(
                    f"stages is {list(counts)}: expected {stages} numbers from 1 up, which add up to {layers} layers"
                )
        elif self.chunks > 1 and layers % stages:
            raise PlanError(
                f"the model has {layers} layers: pipeline {self.pipeline} and chunks {self.chunks} need a multiple of "
                f"{stages}, or a plan that gives stages"
            )
        else:
            counts = tuple(layers // stages + (stage < layers % stages) for stage in range(stages))
        ends = [sum(counts[: stage + 1]) for stage in range(stages)]
        return [range(end - count, end) for end, count in zip(ends, counts)]

    def check_world(self, world: int) -> None:
        """Raise PlanError unless the plan is one for so many ranks."""
        if self.world != world:
            sizes = f"pipeline {self.pipeline} × data {self.data}"
            if self.tensor > 1:
                sizes += f" × tensor {self.tensor}"
            raise PlanError(
                f"the plan is for {self.world} ranks ({sizes}), but WORLD_SIZE is "
                f"{world}: start the job with {self.world} GPUs, or take a plan for {world}"
            )


def plan_of_process(plan: Plan | str | os.PathLike[str] | None = None) -> Plan:
    """Return the plan to run: `plan`, else that of `GAVEL_PLAN`, else a copy of the model on every rank."""
    if plan is None:
        plan = os.environ.get("GAVEL_PLAN") or Plan(data=ranks_of()[1])
    checked = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    checked.check_world(ranks_of()[1])
    return checked


def read_plan(path: Path) -> Plan:
    """Read a plan from a file; raise PlanError if it is not one."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as fault:
        raise PlanError(f"cannot read the plan {path}: {fault}") from fault
    if isinstance(content, dict) and "plans" in content:
        raise PlanError(f"{path} is a list of plans: write one of them into a file, as `jq '.plans[0]'` does")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PlanError(f'{path} is not a plan: expected a JSON object with "format": "{FORMAT}"')
    return plan_of(content, str(path))


def plan_of(content: Mapping[str, Any], source: str = "plan") -> Plan:
    """Return the plan with these fields; raise PlanError if one has a wrong value or is misspelt."""
    _refuse_misspelt(content, source)
    known = {field.name: content[field.name] for field in fields(Plan) if content.get(field.name) is not None}
    for name, value in known.items():
        expected, is_valid = _EXPECTED[name]
        if not is_valid(value):
            raise PlanError(f"{source}: {name} is {_short(value)}: expected {expected}")
        if isinstance(value, list):
            known[name] = tuple(value)
    return Plan(**known)


def _refuse_misspelt(content: Mapping[str, Any], source: str) -> None:
    """Refuse a field such as `pipelin`, instead of which the default would be taken."""
    missing = [field.name for field in fields(Plan) if field.name not in content]
    for name in content:
        near = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.9)
        if near and name not in _EXPECTED:
            raise PlanError(f"{source}: there is no field {_short(name)}; did you mean {near[0]}?")


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_list_of_counts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(_is_count(part) for part in value)


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)


_COUNT = ("a whole number from 1 up", _is_count)
_EXPECTED: dict[str, tuple[str, Callable[[object], bool]]] = {
    "schedule": ("a name, such as 1f1b", lambda value: isinstance(value, str)),
    "recompute": ("true or false", lambda value: isinstance(value, bool)),
    "stages": ("a list of whole numbers from 1 up", _is_list_of_counts),
    "layers": ("a list of names", _is_list_of_names),
    **dict.fromkeys(("pipeline", "data", "tensor", "microbatch", "chunks"), _COUNT),
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_other_model(planned: Sequence[str], names: Sequence[str]) -> None:
    for index, (expected, actual) in enumerate(zip(planned, names)):
        if expected != actual:
            raise PlanError(
                f"the plan is for another model: its layer {index} is '{expected}', the model's is '{actual}'"
            )
    raise PlanError(f"the plan is for a model of {len(planned)} layers; this one has {len(names)}")
