"""The pipeline of a profiled graph as a table and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.chain import Chain
    from planner.graph import States


def as_data(pipeline: Chain) -> dict[str, Any]:
    """Return the pipeline as plain data; docs/plans.md describes the fields."""
    count = len(pipeline.levels)
    return {
        "bottleneck_stage_s": pipeline.bottleneck_stage_s,
        "data_parallel_s": pipeline.data_parallel_s,
        "single_gpu_s": pipeline.single_gpu_s,
        "levels": [
            {
                "level": count - number,
                "stages": [
                    {"first_state": stage.first, "end_state": stage.end, "replicas": stage.replicas}
                    for stage in stages
                ],
            }
            for number, stages in enumerate(pipeline.levels)
        ],
        "stage_of_node": pipeline.stage_of,
    }


def print_pipeline(states: States, pipeline: Chain) -> None:
    """Print the stages of every level, and how much faster the pipeline is than simpler ways."""
    from rich.text import Text

    from gavel.cli.io.tables import new_table, print_all

    table = new_table()
    for head, right in (
        ("level", True),
        ("stage", True),
        ("states", False),
        ("replicas", True),
        ("compute ms", True),
    ):
        table.add_column(head, justify="right" if right else "left")
    for number, stages in enumerate(pipeline.levels):
        for index, stage in enumerate(stages, start=1):
            compute_s = states.compute_s[stage.end - 1] - (
                states.compute_s[stage.first - 1] if stage.first else 0
            )
            table.add_row(
                str(len(pipeline.levels) - number),
                str(index),
                f"{stage.first} to {stage.end - 1}",
                str(stage.replicas),
                f"{1e3 * compute_s:.1f}",
            )
    slowest_s = pipeline.bottleneck_stage_s
    summary = (
        f"a minibatch every {1e3 * slowest_s:.1f} ms\n"
        f"{pipeline.single_gpu_s / slowest_s:.2f} times as fast as one GPU, "
        f"{pipeline.data_parallel_s / slowest_s:.2f} times as fast as data parallelism"
    )
    print_all(table, Text(summary))
