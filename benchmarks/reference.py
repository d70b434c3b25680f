"""Check published answers: `python -m benchmarks.reference planner FILE`, or `training FILE`.

The planner's FILE is a JSON object whose `dev` has the cases by topic; `reference_training.py` describes the other one.
Each case runs through the public interface; the table shows what is expected, what Gavel answers, and the deviation.
Exit code 1 if a case falls short of its tolerance. What cannot be checked is named, with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import reference_training
from benchmarks.reference_checks import Check, NotChecked
from benchmarks.scalar_pipeline import trajectories
from gavel.training.parallel.actions import Schedule, actions_of
from gavel.training.parallel.check import check_actions
from planner.equal import Blocks, memory_bytes
from planner.graph import States
from planner.pipedream_graph import read_states
from planner.plan import Plan
from planner.transformer import Transformer

# Tolerances, relative to what is expected.
EXACT = 1e-9
STAGES = 1e-6
THROUGHPUT_MEAN, THROUGHPUT_WORST = 0.08, 0.15
REGRET = 0.05
# How much slower a pipeline that PipeDream's repository ships may make ours look, at most.
SHIPPED = 1 / 0.99 - 1

# The shapes of models that cases name: those of 2BW's section 5, and GPT-3.
SHAPES = {
    "gpt-1.3b": {"layers": 24, "hidden": 2048, "heads": 16},
    "gpt-2.2b": {"layers": 32, "hidden": 2304, "heads": 24},
    "gpt-3.8b": {"layers": 48, "hidden": 2560, "heads": 32},
    "gpt-3": {"layers": 96, "hidden": 12288, "heads": 96},
}
VOCABULARY = 51200
# 2BW's 64 V100s: eight p3.16xlarge, each with a network of 25 Gbit/s for 8 GPUs; and its largest batch of figure 8.
TWO_BW_NETWORK_GB_PER_S, TWO_BW_BATCH = 25 / 8 / 8, 2048
# PipeDream's repository does not state the bandwidth of its choices.
SHIPPED_BYTES_PER_S = 1e9
DAY_S = 86400.0


def gavel_json(*arguments: str) -> Any:
    """Run a command of `gavel` and return its JSON."""
    command = [sys.executable, "-m", "gavel", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def check_pipedream(models: dict[str, Any]) -> Iterator[Check]:
    """Times of the best pipelines, through `gavel plan GRAPH`."""
    for model, answers in models.items():
        for case in answers["cases"]:
            levels = list(zip(case["gpus_per_level"], case["bandwidth_bytes_per_s"], strict=True))
            flags = {"straight": "--straight", "use_fewer": "--use-fewer"}
            flags["count_activation_transfers"] = "--activation-transfers"
            options = [option for field, option in flags.items() if case[field]]
            if case["memory_bytes"] is not None:
                options += ["--memory", str(case["memory_bytes"])]
            answer = _pipeline(answers["graph_txt"], levels, *options)
            name = f"{model} {'×'.join(str(n) for n, _ in levels)}"
            for field in ("bottleneck_stage_s", "data_parallel_s", "single_gpu_s"):
                yield Check(f"{name} {field}", case["expected"][field], answer[field], STAGES)


def _pipeline(graph_txt: str, levels: list[tuple[int, float]], *options: str) -> dict[str, Any]:
    """Return what `gavel plan GRAPH` prints."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "graph.txt"
        graph.write_text(graph_txt, encoding="utf-8")
        arguments = [part for n, speed in levels for part in ("--level", f"{n}:{speed}")]
        return dict(gavel_json("plan", str(graph), "--as", "pipedream", *arguments, *options))


def check_table_1(rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Parameters and arithmetic by formula; rates, and the regret of the published split, through `gavel plan`."""
    deviations = []
    for row in rows:
        inputs, published, derived = row["inputs"], row["published"], row["derived"]
        model = _transformer(inputs)
        name = f"GPT {published['parameters_billion']} billion"
        yield Check(f"{name}: parameters", derived["parameters_exact"], model.parameters, EXACT)
        flops = model.flops(inputs["global_batch"], recompute=True)
        yield Check(f"{name}: arithmetic", derived["flops_per_iteration"], flops, EXACT)
        sizes = {field: published[field] for field in ("tensor", "pipeline", "data", "microbatch", "chunks")}
        plan = Plan(**sizes, recompute=True)
        rate = _evaluate(inputs, plan)["tflops_per_gpu"]
        check = Check(f"{name}: TFLOP/s", published["tflops_per_gpu"], rate, THROUGHPUT_WORST)
        deviations.append(abs(check.deviation))
        yield check
    mean = sum(deviations) / len(deviations)
    yield Check("rates: mean deviation", 0.0, mean, THROUGHPUT_MEAN)


def check_table_2(rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Rates of a model of 174.6 billion parameters, whose shape is that of GPT-3."""
    for row in rows:
        shape = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200}
        for gpus, published in row["tflops_by_gpus"].items():
            inputs = shape | {"gpus": int(gpus), "global_batch": row["global_batch"], "gpus_per_node": 8}
            plan = Plan(
                8, row["model_parallel"] // 8, int(gpus) // row["model_parallel"], row["microbatch"], 1, True
            )
            rate = _evaluate(inputs, plan)["tflops_per_gpu"]
            yield Check(f"GPT-3 on {gpus}: TFLOP/s", published, rate, THROUGHPUT_WORST)


def check_schedules(cases: list[dict[str, Any]]) -> Iterator[Check]:
    """Duration, waiting and memory of schedules, by simulation of their actions."""
    for case in cases:
        stages, microbatches, chunks = case["stages"], case["microbatches"], case["chunks"]
        actions = actions_of(case["schedule"], stages, microbatches, chunks)
        forward_s, backward_s = case["forward"] / chunks, case["backward"] / chunks
        report = check_actions(actions, forward_s, backward_s)
        name = f"{case['schedule']} p={stages} m={microbatches} v={chunks}"
        yield Check(f"{name}: makespan", case["makespan"], report.makespan, EXACT)
        for rank, expected in enumerate(case["in_flight_chunks_per_rank"]):
            yield Check(f"{name}: in flight on rank {rank}", expected, report.in_flight[rank], EXACT)


def check_two_bw_versions(cases: list[dict[str, Any]]) -> Iterator[Check]:
    """The versions of the weights that microbatches use under 2BW."""
    for case in cases:
        schedule = Schedule("2bw", 1, case["microbatches_per_update"]).check()
        for microbatch, expected in enumerate(case["version_of_microbatch"]):
            yield Check(f"2bw: version of {microbatch}", expected, schedule.version(0, microbatch), EXACT)


def check_stash_versions(cases: list[dict[str, Any]]) -> Iterator[Check]:
    """The versions of the weights that microbatches use with weight stashing."""
    for case in cases:
        schedule = Schedule("stash", case["stages"], 1).check()
        for rank, versions in enumerate(case["version_of_microbatch_per_stage"]):
            for microbatch, expected in enumerate(versions):
                name = f"stash p={case['stages']}: version of {microbatch} on {rank}"
                yield Check(name, expected, schedule.version(rank, microbatch), EXACT)


def check_activations(cases: list[dict[str, Any]]) -> Iterator[Check]:
    """Check the memory that a layer keeps for its backward computation."""
    for case in cases:
        model = Transformer(
            layers=1, hidden=case["hidden"], heads=case["heads"], sequence=case["sequence"], vocabulary=1
        )
        for name, tensor in (("no_parallelism", 1), ("tensor", case["tensor"])):
            expected = case["expected_bytes_per_layer"][name]
            yield Check(
                f"h={model.hidden}: {name}",
                expected,
                model.activation_bytes(case["microbatch"], tensor),
                EXACT,
            )


def check_two_bw_memory(cases: list[dict[str, Any]]) -> Iterator[Check]:
    """2BW's closed forms of memory."""
    plans = {
        "two_bw": Plan(schedule="2bw"),
        "two_bw_recompute": Plan(schedule="2bw", recompute=True),
        "gpipe_recompute": Plan(schedule="gpipe", recompute=True),
    }
    for case in cases:
        blocks = Blocks(
            weights_bytes=case["weights_bytes"],
            activation_bytes=case["total_activation_bytes"],
            input_bytes=case["stage_input_bytes"],
        )
        for name, expected in case["expected"].items():
            plan = replace(plans[name], pipeline=case["depth"])
            yield Check(
                f"{name} p={case['depth']}", expected, memory_bytes(blocks, plan, case["microbatches"]), EXACT
            )


def check_two_bw_planner(cases: list[dict[str, Any]]) -> Iterator[Check | NotChecked]:
    """Depths that 2BW chose, or by how much they are slower; through `gavel plan --schedule 2bw`."""
    for case in cases:
        shape = SHAPES.get(case["model"], {}) | {
            key: case[key] for key in ("layers", "hidden", "heads") if key in case
        }
        if not shape:
            yield NotChecked(case["model"], "the case states no shape, and no publication that we know does")
            continue
        inputs = shape | {
            "sequence": case["sequence"],
            "vocabulary": VOCABULARY,
            "global_batch": TWO_BW_BATCH,
        }
        inputs |= {"gpus": case["gpus"], "gpus_per_node": case.get("gpus_per_node", 8), "gpu": "v100"}
        options = ("--network", str(TWO_BW_NETWORK_GB_PER_S))
        if "direction" in case["published"]:
            shallow, deep = (
                _evaluate(
                    inputs, Plan(1, depth, case["gpus"] // depth, microbatch, schedule="2bw"), *options
                )["step_s"]
                for depth, microbatch in ((4, 1), (8, 32))
            )
            yield Check(f"{case['model']}: p8·b32 after p4·b1, s", shallow, deep, 0.0, at_most=True)
            continue
        depth = case["published"]["depth"]
        best = _best(inputs, "--schedule", "2bw", "--max-tensor", "1", *options)
        same_depth_s = min(
            _evaluate(inputs, Plan(1, depth, case["gpus"] // depth, 2**n, schedule="2bw"), *options)["step_s"]
            for n in range(6)
        )
        yield Check(
            f"{case['model']}: step of depth {depth}, s", best["step_s"], same_depth_s, REGRET, at_most=True
        )
        published = "with" if case["published"]["recompute"] else "without"
        reason = f"the case is one of depth; published {published} recomputation, ours {best['label']}"
        yield NotChecked(f"{case['model']}: recomputation", reason)


def check_training_time(cases: list[dict[str, Any]]) -> Iterator[Check]:
    """Days of training at a given rate, from the arithmetic of an update of GPT-3, whose size the cases have."""
    model = Transformer(**SHAPES["gpt-3"], sequence=2048, vocabulary=VOCABULARY)
    for case in cases:
        sequences = case["tokens"] / model.sequence * case["parameters"] / model.parameters
        rate = case["gpus"] * case["tflops_per_gpu"] * 1e12
        days = model.flops(1, recompute=True) * sequences / rate / DAY_S
        tolerance = case["tolerance_days"] / case["expected_days"]
        yield Check(
            f"{case['parameters'] / 1e9:.0f} billion parameters: days", case["expected_days"], days, tolerance
        )


def check_semantics(cases: list[dict[str, Any]]) -> Iterator[Check | NotChecked]:
    """Weights after every update, from the pipeline of `gavel.training.parallel` on two processes."""
    if importlib.util.find_spec("torch") is None:
        yield NotChecked("all cases", "PyTorch is not installed (the extra 'train')")
        return
    by_rank = trajectories(cases)
    for number, case in enumerate(cases):
        for weight, trajectories_of_rank in zip(("u", "v"), by_rank, strict=True):
            expected = case["expected_after_each_update"][weight]
            if len(trajectories_of_rank[number]) != len(expected):
                yield Check(
                    f"{case['mode']}: updates", len(expected) - 1, len(trajectories_of_rank[number]) - 1, 0.0
                )
                continue
            name = f"{case['mode']} m={case['microbatches_per_update']}: {weight} after update"
            for update, values in enumerate(zip(expected, trajectories_of_rank[number], strict=True)):
                yield Check(f"{name} {update}", *values, EXACT)


def check_shipped(cases: list[dict[str, Any]], models: dict[str, Any]) -> Iterator[Check | NotChecked]:
    """Pipelines that PipeDream's repository ships, at their best cut, against ours under the same cost."""
    for case in cases:
        name = f"{case['model']} on {case['gpus']}: {case['replicas_per_stage']}, s"
        if case["model"] not in models:
            yield NotChecked(name, "the file has no profile of this model")
            continue
        text = models[case["model"]]["graph_txt"]
        answer = _pipeline(text, [(case["gpus"], SHIPPED_BYTES_PER_S)], "--activation-transfers")
        replicas = [int(count) for count in case["replicas_per_stage"].split("-")]
        theirs_s = _shipped_s(read_states(text, case["model"]), replicas)
        yield Check(name, theirs_s, answer["bottleneck_stage_s"], SHIPPED, at_most=True)


def _shipped_s(states: States, replicas: list[int]) -> float:
    """Return the slowest stage of the best pipeline whose stages have so many replicas, by PipeDream's costs."""

    def stage_s(parts: Any, count: int) -> Any:
        compute_s, parameter_bytes = parts
        return (compute_s + 4 * (count - 1) * parameter_bytes / (SHIPPED_BYTES_PER_S * count)) / count

    best_s = stage_s((states.compute_s, states.parameter_bytes), replicas[0])
    for count in replicas[1:]:
        spans = [each[None, :] - each[:, None] for each in (states.compute_s, states.parameter_bytes)]
        transfer_s = 2 * states.output_bytes / (SHIPPED_BYTES_PER_S * count)
        last_s = np.maximum(stage_s(spans, count), transfer_s[:, None])
        best_s = np.where(states.before, np.maximum(best_s[:, None], last_s), np.inf).min(axis=0)
    return float(best_s[-1])


def _transformer(inputs: dict[str, Any]) -> Transformer:
    return Transformer(
        **{field: inputs[field] for field in ("layers", "hidden", "heads", "sequence", "vocabulary")}
    )


def _evaluate(inputs: dict[str, Any], plan: Plan, *options: str) -> dict[str, Any]:
    """Return what `gavel plan --evaluate` prints for one plan."""
    return _best(inputs, "--evaluate", plan.label.replace("·", "-"), *options)


def _best(inputs: dict[str, Any], *options: str) -> dict[str, Any]:
    """Return the plan that `gavel plan` prints for all GPUs, A100s unless the inputs name others."""
    shape = "layers={layers},hidden={hidden},heads={heads},seq={sequence},vocab={vocabulary}".format(**inputs)
    (plan_data,) = gavel_json(
        *("plan", "--gpt", shape, "--batch", str(inputs["global_batch"])),
        *("--cluster", f"{inputs.get('gpu', 'a100').split('-')[0]}={inputs['gpus']}"),
        *("--gpus-per-node", str(inputs["gpus_per_node"])),
        *(() if "--evaluate" in options else ("--gpus", str(inputs["gpus"]))),
        *options,
    )["plans"]
    return dict(plan_data)


CHECKS: dict[str, Callable[[Any], Iterator[Check | NotChecked]]] = {
    "pipedream": check_pipedream,
    "megatron_table_1": check_table_1,
    "megatron_table_2_ptd": check_table_2,
    "schedules": check_schedules,
    "two_bw_versions": check_two_bw_versions,
    "stash_versions": check_stash_versions,
    "activation_memory": check_activations,
    "two_bw_memory": check_two_bw_memory,
    "two_bw_planner": check_two_bw_planner,
    "training_time": check_training_time,
    "semantics": check_semantics,
}
SHIPPED_TOPIC = "pipedream_runtime_configurations"


def main() -> None:
    """Print a row per figure, and what is not checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["planner", "training"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--topic", action="append", help="check only this topic")
    arguments = parser.parse_args()
    document = json.loads(arguments.file.read_text(encoding="utf-8"))
    if arguments.part == "planner":
        cases = document["dev"]
        checks = CHECKS | {SHIPPED_TOPIC: lambda answers: check_shipped(answers, cases.get("pipedream", {}))}
    else:
        cases = reference_training.topics(document)
        checks = dict.fromkeys(cases, reference_training.check_part)
    if unknown := set(arguments.topic or ()) - set(cases):
        parser.error(f"no topic '{min(unknown)}' in {arguments.file}; it has {', '.join(cases)}")
    short = sum(
        print_topic(topic, answers, checks.get(topic))
        for topic, answers in cases.items()
        if not arguments.topic or topic in arguments.topic
    )
    if short:
        sys.exit(f"{short} figures fall short")


def print_topic(topic: str, answers: Any, check: Callable[[Any], Iterator[Check | NotChecked]] | None) -> int:
    """Print the figures of a topic; return how many fall short."""
    if check is None:
        print(f"{topic}: not checked: this release knows no such topic")
        return 0
    short = 0
    print(f"{topic}\n{'':2}{'':46} {'expected':>14} {'ours':>14} {'deviation':>10}")
    for row in check(answers):
        if isinstance(row, NotChecked):
            print(f"  {row.case:46} not checked: {row.reason}")
            continue
        short += not row.holds
        mark = " " if row.holds else "✗"
        print(f"{mark:2}{row.case:46} {row.expected:14.6g} {row.answer:14.6g} {row.deviation:+10.2g}")
    return short


if __name__ == "__main__":
    main()
