"""The plans of a model as a table and as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    notes: tuple[str, ...] = ()

    @staticmethod
    def of_transformer(model: Transformer) -> Subject:
        """Return a transformer as the subject of a table."""
        return Subject(f"gpt-{model.parameters / 1e9:.3g}b", model.parameters, "tokens", model.sequence)

    @staticmethod
    def of_profile(profile: Profile, notes: Sequence[str]) -> Subject:
        """Return a profiled model as the subject of a table, with notes about its times."""
        job = re.sub(r"[^a-z0-9]+", "-", profile.name.lower()).strip("-") or "model"
        return Subject(job, profile.parameters, "samples", 1, tuple(notes))


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
        Text(f"{amount(subject.parameters)} parameters, {batch} samples an update"),
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
    from planner.cluster import gigabytes

    plan, cost = priced
    exchange_s = cost.tensor_s + cost.pipeline_s + cost.data_s
    return [
        gpu.name,
        str(plan.gpus),
        plan.label,
        gigabytes(cost.memory_bytes.max()),
        f"{cost.step_s:.3g}",
        f"{100 * cost.bubble_s / cost.step_s:.0f}",
        f"{100 * exchange_s / cost.step_s:.0f}",
        f"{cost.flops_per_gpu / 1e12:.0f}",
        f"{batch * subject.per_sample / cost.step_s:,.0f}",
    ]


def amount(count: float) -> str:
    """Return a number of parameters in words: `225`, `1.2 million`, `1.7 billion`."""
    if count < 1e5:
        return f"{count:,.0f}"
    return f"{count / 1e9:,.1f} billion" if count >= 1e8 else f"{count / 1e6:,.3g} million"
