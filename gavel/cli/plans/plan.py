"""`gavel plan`: the best plans of a model on a cluster, or the best pipeline of a graph of PipeDream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.installation import require
from gavel.cli.io.completion import UNFINISHED, complete_jobs
from gavel.cli.io.options import ADDRESS, Number
from gavel.cli.plans.values import LevelValue, Shape, require_options
from gavel.cli.simulation.values import ByType, Listed, joined_lists, joined_tables
from scheduler.model.bounds import Bound

if TYPE_CHECKING:
    from gavel.cli.plans.plan_table import Subject
    from planner.cluster import Gpu
    from planner.figures import Model
    from planner.search import Allowed

GPUS = Number(Bound(1, 100_000), whole=True)
SIZE = Number(Bound(1, 1_000_000), whole=True)
SPEED = Number(Bound(1e-3, 1e6))
BYTES = Number(Bound(1, 1e18))
GIGABYTES = Number(Bound(1e-3, 1e7))


@click.command(name="plan")
@click.argument("file", metavar="[PROFILE|GRAPH]", required=False, type=click.Path())
@click.option(
    "--gpt",
    "shape",
    type=Shape(),
    metavar="SHAPE",
    help="A transformer: layers=N,hidden=N,heads=N,seq=N,vocab=N.",
)
@click.option(
    "--batch",
    type=SIZE,
    metavar="N",
    help="The samples of one update of the weights, over all GPUs.",
)
@click.option(
    "--cluster",
    type=ByType(GPUS),
    multiple=True,
    callback=joined_tables,
    metavar="TYPE=N,…",
    help="The GPUs of each worker type, such as a100=1024. May be repeated.",
)
@click.option(
    "--gpus-per-node", type=SIZE, default=8, show_default=True, metavar="N", help="The GPUs of a node."
)
@click.option(
    "--gpus",
    "widths",
    type=Listed(GPUS),
    multiple=True,
    callback=joined_lists,
    metavar="N,…",
    help="Plan for these numbers of GPUs. By default, for 1, 2, 4 and so on.",
)
@click.option(
    "--gpu-memory",
    "gpu_memory_gb",
    type=ByType(GIGABYTES),
    multiple=True,
    callback=joined_tables,
    metavar="TYPE=GB,…",
    help="The memory of a GPU of these types, such as v100=32, instead of the figure of its type.",
)
@click.option(
    "--link",
    "link_gb_per_s",
    type=SPEED,
    metavar="GB/S",
    help="What a GPU can send within its node, instead of the figure of its type.",
)
@click.option(
    "--network",
    "network_gb_per_s",
    type=SPEED,
    metavar="GB/S",
    help="What a GPU can send to other nodes, instead of the figure of its type.",
)
@click.option(
    "--schedule",
    type=click.Choice(["1f1b", "interleaved", "gpipe", "2bw", "stash"]),
    help="Plan with this schedule only. By default, 1f1b and interleaved; 2bw and stash train with older weights.",
)
@click.option(
    "--max-tensor",
    "tensor_max",
    type=SIZE,
    metavar="N",
    help="Divide a layer over at most N GPUs; by default, over those of a node. Scripts without split layers run 1.",
)
@click.option("--evaluate", metavar="LABEL", help="Show what this plan costs, such as t8-p64-d6-b1-v2.")
@click.option(
    "--explain",
    "explained_gpus",
    type=GPUS,
    metavar="GPUS",
    help="Show the stages, memory and timeline of the best plan for this number of GPUs, and what limits it.",
)
@click.option(
    "--plot", type=click.Path(), metavar="FILE", help="With --explain: draw it, too, as .svg or .png."
)
@click.option("--why-not", metavar="LABEL", help="Say why this plan is not the best, such as t4-p8-d2.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["pipedream"]),
    help="The form of GRAPH: graph.txt of PipeDream's profiler.",
)
@click.option(
    "--level",
    "levels",
    type=LevelValue(),
    multiple=True,
    metavar="N:BYTES/S",
    help="With GRAPH: N machines of the level below, and their bandwidth. May be repeated, the lowest level first.",
)
@click.option("--straight", is_flag=True, help="With GRAPH: stages have no replicas.")
@click.option(
    "--memory", "memory_bytes", type=BYTES, metavar="BYTES", help="With GRAPH: the memory of a GPU."
)
@click.option("--use-fewer", is_flag=True, help="With GRAPH: GPUs may stay unused.")
@click.option("--activation-transfers", is_flag=True, help="With GRAPH: count the transfers between stages.")
@click.option(
    "--columns",
    "as_columns",
    is_flag=True,
    help="Print the plans as a job of a problem file, without those that no allocation can need.",
)
@click.option(
    "--refresh",
    "refreshed_job",
    metavar="JOB",
    help="Compute the automatic plans of this job or array again, for the cluster as it is now, and update it.",
    shell_complete=complete_jobs(UNFINISHED, to_change=True),
)
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
@ADDRESS
def plan(file: str | None, as_json: bool, as_columns: bool, **options: Any) -> None:
    """Show how to split a model over GPUs.

    With a PROFILE of `gavel profile` or with --gpt, and with --batch and --cluster: the fastest plan for each worker
    type and number of GPUs. With --as pipedream, a GRAPH and --level: the fastest pipeline of that graph. docs/plans.md
    explains the figures. With --refresh: update a job that was submitted with automatic plans.
    """
    require("plan", "gavel plan")
    job, address, context = (options.pop(name) for name in ("refreshed_job", "address", "context"))
    if job is not None:
        from gavel.cli.io.session import Session
        from gavel.cli.plans.refresh import check_alone, refresh

        check_alone()
        refresh(Session(address, context, as_json), job)
        return
    if address is not None or context is not None:
        raise Fault(f"--{'context' if address is None else 'address'} has no effect without --refresh")
    if (file is None) == (options["shape"] is None):
        raise Fault("give either PROFILE, GRAPH or --gpt")
    _check_questions(options, as_columns)
    is_graph = options["form"] is not None or bool(options["levels"])
    if as_columns and (as_json or is_graph):
        raise Fault(f"--columns has no effect with {'--json' if as_json else 'GRAPH'}")
    if file is not None and is_graph:
        from gavel.cli.plans.pipeline import plan_graph

        plan_graph(file, as_json, options)
    else:
        _plan_model(file, as_json, as_columns, options)


def _check_questions(options: dict[str, Any], as_columns: bool) -> None:
    """Refuse options that have no effect with --explain and --why-not, and --plot without --explain."""
    if options["explained_gpus"] and options["why_not"]:
        raise Fault("give either --explain or --why-not")
    if options["plot"] is not None and not options["explained_gpus"]:
        raise Fault("--plot needs --explain")
    question = "--explain" if options["explained_gpus"] else "--why-not"
    if not (options["explained_gpus"] or options["why_not"]):
        return
    others = {"--columns": as_columns, "--evaluate": options["evaluate"], "--gpus": options["widths"]}
    for option, value in others.items():
        if value:
            raise Fault(f"{option} has no effect with {question}")


def _plan_model(file: str | None, as_json: bool, as_columns: bool, options: dict[str, Any]) -> None:
    from gavel.cli.plans.explanation import honest_notes, remarks
    from gavel.cli.plans.plan_table import Subject, job_lines, print_plans
    from gavel.cli.plans.values import profile_of, transformer_of
    from gavel.plans import as_entries, with_estimates
    from planner.errors import PlanError

    require_options(
        options,
        {"batch": "--batch", "cluster": "--cluster"},
        {"form": "--as", "levels": "--level", "straight": "--straight", "memory_bytes": "--memory"}
        | {"use_fewer": "--use-fewer", "activation_transfers": "--activation-transfers"},
        "--gpt" if file is None else "PROFILE",
    )
    profile = None if file is None else profile_of(file)
    gpus = _gpus(() if profile is None else profile.worker_types, options)
    model: Model
    if profile is None:
        model = transformer_of(options["shape"])
        subject = Subject.of_transformer(model)
    else:
        with refusing(PlanError):
            model, estimates = with_estimates(profile, [gpu for gpu, _ in gpus])
        subject = Subject.of_profile(model, estimates)
    if options["why_not"]:
        _print_reasons(model, gpus, options, as_json)
        return
    if options["explained_gpus"]:
        _explain(model, subject, gpus, options, as_json)
        return
    rows, notes = _rows(model, gpus, options)
    if as_columns:
        for line in job_lines(subject, rows):
            click.echo(line)
        return
    if options["evaluate"]:
        notes += honest_notes([gpu.name for gpu, _ in rows])
    else:
        notes += remarks(model, rows, options["batch"], _allowed(options))
    notes = [*subject.notes, *notes]
    if as_json:
        from gavel.cli.io.outputs import print_data

        print_data({"plans": as_entries(model, rows), "notes": notes})
    else:
        print_plans(subject, options["batch"], rows, notes)


def _gpus(profiled: Sequence[str], options: dict[str, Any]) -> list[tuple[Gpu, int]]:
    """Return the worker types of --cluster, and how many GPUs there are of each."""
    from gavel.plans import gpu_of
    from planner.errors import PlanError

    memory_gb = options["gpu_memory_gb"] or {}
    for name in memory_gb:
        if name not in options["cluster"]:
            raise Fault(f"--gpu-memory: '{name[:60]}' is not a worker type of --cluster")
    links = {field: options[field] for field in ("link_gb_per_s", "network_gb_per_s")}
    with refusing(PlanError, subject="--cluster"):
        return [
            (
                gpu_of(
                    name,
                    options["gpus_per_node"],
                    memory_gb=memory_gb.get(name),
                    profiled=profiled,
                    **links,
                ),
                int(count),
            )
            for name, count in options["cluster"].items()
        ]


def _rows(model: Model, gpus: list[tuple[Gpu, int]], options: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """Return the plans to show, and why too few GPUs have none; refuse if there is no plan at all."""
    from gavel.cli.io.progress import bar
    from gavel.plans import plan_rows, simulator_for
    from planner.errors import PlanError
    from planner.plan import read_plan
    from planner.search import evaluate, why_not

    rows, notes = [], []
    allowed, simulator = _allowed(options), simulator_for(model)
    for gpu, count in gpus:
        if options["evaluate"]:
            with refusing(PlanError, subject="--evaluate"):
                candidate = read_plan(options["evaluate"])
                priced = evaluate(model, gpu, candidate, options["batch"], simulator)
            rows.append((gpu, priced))
            notes += [note] if (note := why_not(priced, gpu, candidate.gpus)) else []
            continue
        for width in options["widths"] or ():
            if width > count:
                raise Fault(f"--gpus: {width} is more than the {count} {gpu.name} of --cluster")
        with bar("planning") as show:
            of_type, reasons = plan_rows(
                model,
                [(gpu, count)],
                options["batch"],
                options["widths"],
                allowed,
                lambda words, done, total: show(words, done / total),
            )
        rows += of_type
        notes += reasons
    if not rows:
        raise Fault(notes[-1])
    return rows, notes


def _allowed(options: dict[str, Any]) -> Allowed:
    from planner.search import Allowed

    schedules = (options["schedule"],) if options["schedule"] else Allowed().schedules
    return Allowed(schedules, options["tensor_max"])


def _explain(
    model: Model, subject: Subject, gpus: list[tuple[Gpu, int]], options: dict[str, Any], as_json: bool
) -> None:
    """Print, and draw on request, the best plan of each worker type for one number of GPUs."""
    from gavel.cli.io.outputs import check_file, print_data
    from gavel.cli.plans.explanation import as_data, explained, honest_notes, print_explanation
    from gavel.plans import as_entries

    file, width = options["plot"], options["explained_gpus"]
    if file is not None:
        require("plots", "--plot")
        if Path(file).suffix not in (".svg", ".png"):
            raise Fault(f"--plot: {file}: must end in .svg or .png")
        check_file("--plot", file)
    if all(count < width for _, count in gpus):
        raise Fault(f"--explain: {width} is more than the GPUs of each type in --cluster")
    larger = [(gpu, count) for gpu, count in gpus if count >= width]
    rows, notes = _rows(model, larger, {**options, "widths": [width]})
    explanations = [
        explained(model, gpu, priced, options["batch"], _allowed(options)) for gpu, priced in rows
    ]
    if as_json:
        data = as_entries(model, rows)
        print_data({"plans": [plan | as_data(each) for plan, each in zip(data, explanations, strict=True)]})
    else:
        for number, explanation in enumerate(explanations):
            if number:
                click.echo("")
            print_explanation(explanation)
        for note in [*subject.notes, *notes, *honest_notes([gpu.name for gpu, _ in rows])]:
            click.echo(f"note: {note}")
    if file is not None:
        from gavel.cli.plans.plot import draw_plans

        with refusing(OSError, subject=f"--plot: {file}"):
            draw_plans(explanations).savefig(file)


def _print_reasons(model: Model, gpus: list[tuple[Gpu, int]], options: dict[str, Any], as_json: bool) -> None:
    """Print, by worker type, why a plan is not the best one."""
    from gavel.cli.io.outputs import print_data
    from planner.errors import PlanError
    from planner.explain import reason_against
    from planner.plan import read_plan

    with refusing(PlanError, subject="--why-not"):
        width = read_plan(options["why_not"]).gpus
        if all(count < width for _, count in gpus):
            raise Fault(f"--why-not: the plan needs {width} GPUs; --cluster has fewer of each type")
        reasons = [
            (gpu, *reason_against(model, gpu, options["why_not"], options["batch"], _allowed(options)))
            for gpu, count in gpus
            if count >= width
        ]
    if as_json:
        print_data(
            {
                "why_not": [
                    {
                        "worker_type": gpu.name,
                        "label": None if priced is None else priced.plan.label,
                        "step_s": None if priced is None else priced.cost.step_s,
                        "reason": reason,
                    }
                    for gpu, reason, priced in reasons
                ]
            }
        )
        return
    for gpu, reason, priced in reasons:
        label = options["why_not"] if priced is None else priced.plan.label
        click.echo(f"{gpu.name}: {label} {reason}")
