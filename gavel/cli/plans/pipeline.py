"""The pipeline of a profiled graph as a table and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gavel.cli.faults import refusing
from gavel.cli.io.wording import file_name
from gavel.cli.plans.values import read_text, require_options

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


def plan_graph(graph: str, as_json: bool, options: dict[str, Any]) -> None:
    """Print the fastest pipeline of a graph of PipeDream, as `gavel plan` does with these options."""
    from planner.chain import Options, chain
    from planner.errors import PlanError
    from planner.pipedream_graph import read_states

    require_options(
        options,
        {"form": "--as pipedream", "levels": "--level"},
        {"batch": "--batch", "cluster": "--cluster", "widths": "--gpus", "evaluate": "--evaluate"}
        | {"schedule": "--schedule", "tensor_max": "--max-tensor", "gpu_memory_gb": "--gpu-memory"}
        | {"explained_gpus": "--explain", "why_not": "--why-not", "plot": "--plot"},
        "GRAPH",
    )
    text = read_text(graph)
    variant = Options(
        options["straight"], options["memory_bytes"], options["use_fewer"], options["activation_transfers"]
    )
    with refusing(PlanError):
        states = read_states(text, file_name(graph))
        pipeline = chain(states, options["levels"], variant)
    if as_json:
        from gavel.cli.io.outputs import print_data

        print_data(as_data(pipeline))
    else:
        print_pipeline(states, pipeline)
