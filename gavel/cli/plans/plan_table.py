"""The plans of a model as a table and as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.cluster import Gpu
    from planner.profile import Profile
    from planner.search import Priced
    from planner.transformer import Transformer

Rows = list[tuple["Gpu", "Priced"]]


@dataclass(frozen=True, slots=True)
class Subject:
    """The model of a table."""

    # The id of its job in a problem file.
    job: str
    parameters: float
    # The unit of its work, and how many of these are in a sample.
    unit: str
    per_sample: int
    # The names of its layers, and the worker types whose times are estimated, if it was profiled.
    layers: tuple[str, ...] = ()
    estimated: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @staticmethod
    def of_transformer(model: Transformer) -> Subject:
        """Return a transformer as the subject of a table."""
        return Subject(f"gpt-{model.parameters / 1e9:.3g}b", model.parameters, "tokens", model.sequence)

    @staticmethod
    def of_profile(profile: Profile, notes: Sequence[str]) -> Subject:
        """Return a profiled model as the subject of a table, with notes about its times."""
        job = re.sub(r"[^a-z0-9]+", "-", profile.name.lower()).strip("-") or "model"
        names = tuple(layer.name for layer in profile.layers)
        return Subject(job, profile.parameters, "samples", 1, names, profile.estimated, tuple(notes))


def as_data(subject: Subject, rows: Rows) -> dict[str, Any]:
    """Return the plans as plain data; docs/plans.md describes the fields.

    The plans of a profile are plan files for `gavel.training.parallel`, too.
    """
    from planner.search import fits

    def of_profile(gpu: Gpu, borders: list[int]) -> dict[str, Any]:
        if not subject.layers:
            return {}
        stages = [end - first for first, end in pairwise(borders)]
        return {
            "format": "gavel-plan/1",
            "stages": stages,
            "layers": list(subject.layers),
            "estimated": gpu.name in subject.estimated,
        }

    return {
        "plans": [
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
    }


def job_lines(subject: Subject, rows: Rows) -> Iterator[str]:
    """Yield the lines of a job of a problem file, whose variants are the plans that an allocation can need."""
    from planner.columns import columns

    yield f"  - id: {subject.job}"
    yield "    variants:"
    for name in dict.fromkeys(gpu.name for gpu, _ in rows):
        for column in columns(name, (priced for gpu, priced in rows if gpu.name == name)):
            yield (
                f"      - {{worker_type: {name}, gpus: {column.gpus}, rate: {column.rate:.6g}, "
                f"label: {column.label}}}"
            )


def print_plans(subject: Subject, batch: int, rows: Rows, notes: list[str]) -> None:
    """Print a row per plan, then why other numbers of GPUs have none."""
    from rich.text import Text

    from gavel.cli.io.tables import new_table, print_all

    table = new_table()
    for head, right in (*_HEADS, (f"{subject.unit}/s", True)):
        table.add_column(head, justify="right" if right else "left")
    for gpu, priced in rows:
        table.add_row(*_cells(subject, batch, gpu, priced))
    parts: list[Any] = [
        Text(f"{_amount(subject.parameters)} parameters, {batch} samples an update"),
        table,
    ]
    parts += [Text(f"note: {note}") for note in notes]
    print_all(*parts)


_HEADS = (
    ("type", False),
    ("GPUs", True),
    ("plan", False),
    ("memory GB", True),
    ("step s", True),
    ("bubble %", True),
    ("exchange %", True),
    ("TFLOP/s", True),
)


def _cells(subject: Subject, batch: int, gpu: Gpu, priced: Priced) -> list[str]:
    plan, cost = priced
    exchange_s = cost.tensor_s + cost.pipeline_s + cost.data_s
    return [
        gpu.name,
        str(plan.gpus),
        plan.label,
        f"{cost.memory_bytes.max() / 1e9:.1f}",
        f"{cost.step_s:.3g}",
        f"{100 * cost.bubble_s / cost.step_s:.0f}",
        f"{100 * exchange_s / cost.step_s:.0f}",
        f"{cost.flops_per_gpu / 1e12:.0f}",
        f"{batch * subject.per_sample / cost.step_s:,.0f}",
    ]


def _amount(count: float) -> str:
    return f"{count / 1e9:,.1f} billion" if count >= 1e8 else f"{count / 1e6:,.3g} million"
