"""The plans of a transformer as a table and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.cluster import Gpu
    from planner.search import Priced
    from planner.transformer import Transformer

Rows = list[tuple["Gpu", "Priced"]]


def as_data(rows: Rows) -> dict[str, Any]:
    """Return the plans as plain data; docs/plans.md describes the fields."""
    from planner.search import fits

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
            }
            for gpu, (plan, cost) in rows
        ]
    }


def job_lines(model: Transformer, rows: Rows) -> Iterator[str]:
    """Yield the lines of a job of a problem file, whose variants are the plans that an allocation can need."""
    from planner.columns import columns

    yield f"  - id: gpt-{model.parameters / 1e9:.3g}b"
    yield "    variants:"
    for name in dict.fromkeys(gpu.name for gpu, _ in rows):
        for column in columns(name, (priced for gpu, priced in rows if gpu.name == name)):
            yield (
                f"      - {{worker_type: {name}, gpus: {column.gpus}, rate: {column.rate:.6g}, "
                f"label: {column.label}}}"
            )


def print_plans(model: Transformer, batch: int, rows: Rows, notes: list[str]) -> None:
    """Print a row per plan, then why other numbers of GPUs have none."""
    from rich.text import Text

    from gavel.cli.io.tables import new_table, print_all

    table = new_table()
    for head, right in _HEADS:
        table.add_column(head, justify="right" if right else "left")
    for gpu, priced in rows:
        table.add_row(*_cells(model, batch, gpu, priced))
    parts: list[Any] = [
        Text(f"{model.parameters / 1e9:,.1f} billion parameters, {batch} samples an update"),
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
    ("tokens/s", True),
)


def _cells(model: Transformer, batch: int, gpu: Gpu, priced: Priced) -> list[str]:
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
        f"{batch * model.sequence / cost.step_s:,.0f}",
    ]
