"""Parallelisation plans from Python: `gavel.plan(model, cluster, batch=…)`. docs/plans.md explains the figures.

Needs the extra `plan`; nothing of it is imported before the first call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from gavel.client.views.html import page, table, tag
from gavel.training.parallel.actions import computations_of
from traces.errors import nearest
from traces.roofline_figures import WORKER_TYPES

try:
    import numpy as np  # noqa: F401
except ImportError:
    raise ImportError("gavel.plan needs numpy: pip install 'gavel-scheduler[plan]'") from None

from planner.cluster import Gpu
from planner.columns import Column, columns
from planner.errors import BadCluster, BadPlan, BadProfile, NothingFits, PlanError
from planner.figures import Model
from planner.plan import SCHEDULES
from planner.profile import Profile
from planner.profile_form import read_profile
from planner.search import Allowed, Priced, fastest_plan, fits, nothing_fits, widths
from planner.simulate import Simulator
from planner.transformer import Transformer

__all__ = [
    "Allowed",
    "PlanError",
    "Plans",
    "Rows",
    "as_entries",
    "gpu_of",
    "model_of",
    "needed",
    "plan",
    "plan_rows",
    "simulator_for",
    "widths",
    "with_estimates",
]

# Plans with their costs, each with the GPUs that it is for.
Rows = Sequence[tuple["Gpu", "Priced"]]

# The network card of each GPU, where there is one, in GB per second; other types share the network of a cloud instance.
CARDS_GB_PER_S = {"a100": 25.0, "h100": 50.0, "h200": 50.0}
# The part of its card that a GPU reaches in exchanges between nodes.
CARD_REACHED = 0.75
# How much more a GPU sends within its node than in an all-reduce of all GPUs, which traces.roofline_figures states.
LINK_OVER_ALL_REDUCE = 1.3

HEADS = ("worker_type", "gpus", "label", "step_s", "memory_gb", "bubble", "tflops_per_gpu")


@dataclass(frozen=True)
class Plans:
    """The fastest plan of each worker type and number of GPUs, and notes about the others. Notebooks show a table."""

    rows: tuple[tuple[Gpu, Priced], ...]
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> list[dict[str, Any]]:
        """The plans as plain values, a row each; `pandas.DataFrame(plans.table)` is a frame."""
        return [
            {
                "worker_type": gpu.name,
                "gpus": priced.plan.gpus,
                "label": priced.plan.label,
                "step_s": priced.cost.step_s,
                "memory_gb": float(priced.cost.memory_bytes.max()) / 1e9,
                "bubble": priced.cost.bubble,
                "tflops_per_gpu": priced.cost.flops_per_gpu / 1e12,
            }
            for gpu, priced in self.rows
        ]

    def columns(self) -> list[Column]:
        """Return the plans that an allocation can need, as variants of a job: worker type, GPUs, rate and label."""
        names = dict.fromkeys(gpu.name for gpu, _ in self.rows)
        return [
            column
            for name in names
            for column in columns(name, [priced for gpu, priced in self.rows if gpu.name == name])
        ]

    def best(self, gpus: int, worker_type: str) -> Priced:
        """Return the plan and its cost for so many GPUs of a worker type; raise BadPlan if there is none."""
        for gpu, priced in self.rows:
            if (gpu.name, priced.plan.gpus) == (worker_type, gpus):
                return priced
        counts = [str(priced.plan.gpus) for gpu, priced in self.rows if gpu.name == worker_type]
        raise BadPlan(
            f"no plan for {gpus} × {worker_type}",
            hint=f"there are plans for {', '.join(counts)}"
            if counts
            else "the type is not one of the cluster",
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        lines = [[*HEADS], *self._cells()]
        sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        return str(page(table(HEADS, self._cells()), *(tag("div", note) for note in self.notes)))

    def _cells(self) -> Iterator[list[str]]:
        for row in self.table:
            yield [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]


def plan(
    model: Model | Mapping[str, Any] | str | os.PathLike[str],
    cluster: Mapping[str, int],
    *,
    batch: int,
    gpus: Sequence[int] | None = None,
    gpus_per_node: int = 8,
    schedule: str | None = None,
    max_tensor: int | None = None,
    gpu_memory_gb: Mapping[str, float] | None = None,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> Plans:
    """Return the fastest plans of a model on a cluster: for each worker type, and 1, 2, 4 … GPUs or those of `gpus`.

    `model` is the path or the content of a profile, or the shape of a transformer: layers, hidden, heads, sequence and
    vocabulary. `cluster` has the GPUs of each worker type, `batch` counts the samples of an update over all GPUs. The
    other arguments are the options of `gavel plan`. Raise PlanError if something is wrong, or nothing fits.
    """
    sizes = {
        "batch": batch,
        "gpus_per_node": gpus_per_node,
        "max_tensor": 1 if max_tensor is None else max_tensor,
    }
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise BadPlan(f"{name} must be a whole number from 1 up, got {size!r}")
    if gpus is not None and not (
        isinstance(gpus, list | tuple | range) and gpus and all(type(each) is int for each in gpus)
    ):
        raise BadPlan(f"gpus must be a list of whole numbers such as [2, 4], got {gpus!r}")
    if schedule is not None and schedule not in SCHEDULES:
        raise BadPlan(f"'{schedule}' is not one of {', '.join(SCHEDULES)}", place="schedule")
    known_model = model_of(model)
    profiled = known_model.worker_types if isinstance(known_model, Profile) else ()
    links = {"link_gb_per_s": link_gb_per_s, "network_gb_per_s": network_gb_per_s}
    memory_gb = gpu_memory_gb or {}
    for name in memory_gb:
        if name not in cluster:
            raise BadCluster(f"'{name[:60]}' is not a worker type of the cluster", place="gpu_memory_gb")
    kinds = [
        gpu_of(name, gpus_per_node, memory_gb=memory_gb.get(name), profiled=profiled, **links)
        for name in cluster
    ]
    notes: list[str] = []
    if isinstance(known_model, Profile):
        known_model, notes = with_estimates(known_model, kinds)
    allowed = Allowed((schedule,) if schedule else Allowed().schedules, max_tensor)
    rows, reasons = plan_rows(
        known_model, list(zip(kinds, cluster.values(), strict=True)), batch, gpus, allowed
    )
    if not rows:
        raise NothingFits(reasons[-1] if reasons else "the cluster has no GPUs")
    return Plans(tuple(rows), (*notes, *reasons))


def with_estimates(profile: Profile, kinds: Sequence[Gpu]) -> tuple[Profile, list[str]]:
    """Return a profile with times for these worker types, and a note about each type that was not measured."""
    measured = [kind.name for kind in WORKER_TYPES if kind.name in profile.worker_types]
    known = [gpu_of(name, 1, profiled=measured) for name in measured]
    for kind in kinds:
        profile = profile.with_estimate(kind, known)
    sources = ", ".join(measured)
    doubt = ", which tell little about a GPU" if measured == ["cpu"] else ""
    return profile, [
        f"times on {name} are estimated from those on {sources}{doubt}" for name in sorted(profile.estimated)
    ]


def plan_rows(
    model: Model,
    cluster: Sequence[tuple[Gpu, int]],
    batch: int,
    gpus: Sequence[int] | None,
    allowed: Allowed,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[tuple[Gpu, Priced]], list[str]]:
    """Return the best plan of each worker type and number of GPUs, and by type why the largest without one has none.

    `progress` is called before each number of GPUs: what is planned, and how many of how many of this type are done.
    """
    simulator = simulator_for(model)
    rows, notes = [], []
    for gpu, count in cluster:
        if type(count) is not int or count < 1:
            raise BadCluster(f"must be a whole number from 1 up, got {count!r}", place=f"cluster: {gpu.name}")
        # The last number of GPUs without a plan.
        largest: int | None = None
        all_widths = gpus or widths(gpu, count)
        for done, width in enumerate(all_widths):
            if progress is not None:
                progress(f"planning for {width} × {gpu.name}", done, len(all_widths))
            if not 1 <= width <= count:
                raise BadCluster(
                    f"{width} is not a number of GPUs from 1 to {count}", place=f"gpus of {gpu.name}"
                )
            fastest = fastest_plan(model, gpu, width, batch, allowed, simulator)
            if fastest is None:
                largest = width
            else:
                rows.append((gpu, fastest))
        if largest is not None:
            notes.append(str(nothing_fits(model, gpu, largest, batch, allowed)))
    return rows, notes


def needed(rows: Rows) -> list[tuple[Gpu, Priced]]:
    """Return the plans that an allocation can need."""
    kept = set()
    for gpu in dict.fromkeys(gpu for gpu, _ in rows):
        of_type = [priced for other, priced in rows if other == gpu]
        kept |= {(gpu, column.gpus) for column in columns(gpu.name, of_type)}
    return [(gpu, priced) for gpu, priced in rows if (gpu, priced.plan.gpus) in kept]


def as_entries(model: Model, rows: Rows) -> list[dict[str, Any]]:
    """Return plans as plain data, the entries of a file with plans; docs/plans.md describes the fields.

    The plans of a profile are plan files for `gavel.training.parallel`, too.
    """

    def of_profile(gpu: Gpu, borders: list[int]) -> dict[str, Any]:
        if not isinstance(model, Profile):
            return {}
        return {
            "format": "gavel-plan/1",
            "stages": [end - first for first, end in pairwise(borders)],
            "layers": [layer.name for layer in model.layers],
            "estimated": gpu.name in model.estimated,
        }

    return [
        {
            "worker_type": gpu.name,
            "gpus": plan.gpus,
            "label": plan.label,
            "tensor": plan.tensor,
            "pipeline": plan.pipeline,
            "data": plan.data,
            "microbatch": plan.microbatch,
            "chunks": plan.chunks,
            "recompute": plan.recompute,
            "schedule": plan.schedule,
            "step_s": cost.step_s,
            "compute_s": cost.compute_s,
            "bubble_s": cost.bubble_s,
            "tensor_s": cost.tensor_s,
            "pipeline_s": cost.pipeline_s,
            "data_s": cost.data_s,
            "tflops_per_gpu": cost.flops_per_gpu / 1e12,
            "memory_bytes": float(cost.memory_bytes.max()),
            "memory_bytes_by_stage": cost.memory_bytes.tolist(),
            "fits": fits(cost, gpu),
            "bubble": cost.bubble,
            **of_profile(gpu, cost.borders.tolist()),
        }
        for gpu, (plan, cost) in rows
    ]


def simulator_for(model: Model) -> Simulator | None:
    """Return what simulates plans of a profile, whose layers differ; closed forms suffice for equal layers."""
    return Simulator(computations_of) if isinstance(model, Profile) else None


def gpu_of(
    name: str,
    per_node: int,
    *,
    memory_gb: float | None = None,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
    profiled: Collection[str] = (),
) -> Gpu:
    """Return a worker type of the bundled table as the planner sees it. A CPU is one only if it was profiled.

    `memory_gb` and the speeds of links replace the figures of the table.
    """
    types = {kind.name: kind for kind in WORKER_TYPES if kind.name != "cpu" or kind.name in profiled}
    kind = types.get(name)
    if kind is None:
        raise BadCluster(f"'{name[:60]}' is not a known worker type", hint=nearest(name, types))
    if link_gb_per_s is None:
        link_gb_per_s = LINK_OVER_ALL_REDUCE * kind.link_gb_per_s
    if network_gb_per_s is None:
        card = CARDS_GB_PER_S.get(name)
        network_gb_per_s = kind.network_gb_per_s if card is None else CARD_REACHED * card
    return Gpu(
        name=name,
        flops_per_s=kind.peak_tflops * kind.sustained * 1e12,
        memory_bytes=1e9 * (kind.memory_gb if memory_gb is None else memory_gb),
        memory_bytes_per_s=kind.bandwidth_gb_per_s * 1e9,
        link_bytes_per_s=link_gb_per_s * 1e9,
        network_bytes_per_s=network_gb_per_s * 1e9,
        per_node=per_node,
    )


def model_of(model: Model | Mapping[str, Any] | str | os.PathLike[str]) -> Model:
    """Return a model from its profile or its shape; raise PlanError if it is neither."""
    if isinstance(model, str | os.PathLike):
        try:
            return read_profile(json.loads(Path(model).read_bytes()), str(model))
        except OSError as error:
            raise BadProfile((error.strerror or str(error)).lower(), place=str(model)) from None
        except PlanError:
            raise
        except (ValueError, RecursionError):
            raise BadProfile("is not JSON", place=str(model)) from None
    if not isinstance(model, Mapping):
        return model
    if "format" in model:
        return read_profile(dict(model), "model")
    names = [field.name for field in fields(Transformer)]
    if set(model) != set(names):
        raise BadProfile(f"the shape of a transformer has {', '.join(names)}", place="model")
    return Transformer(**model)
