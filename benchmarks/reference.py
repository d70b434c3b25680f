"""Check published answers: `python -m benchmarks.reference planner FILE`.

FILE has the form of the planner's reference answers: a JSON object whose `dev` has the cases by topic. Each case runs
through the public interface; the table shows what is expected, what Gavel answers, and the deviation. Exit code 1 if a
case falls short of its tolerance. Topics without a check are named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gavel.training.parallel.actions import Schedule, actions_of
from gavel.training.parallel.check import check_actions
from planner.plan import Plan
from planner.transformer import Transformer

# Tolerances, relative to what is expected.
EXACT = 1e-9
STAGES = 1e-6
THROUGHPUT_MEAN, THROUGHPUT_WORST = 0.08, 0.15
REGRET = 0.05


class Check(NamedTuple):
    """One figure: its case, the expected value, ours, and the greatest deviation allowed (one-sided if `at_most`)."""

    case: str
    expected: float
    answer: float
    tolerance: float
    at_most: bool = False

    @property
    def deviation(self) -> float:
        """How far the answer is from what is expected, relative to it."""
        return (self.answer - self.expected) / abs(self.expected) if self.expected else self.answer

    @property
    def holds(self) -> bool:
        """Whether the deviation is within the tolerance."""
        return (self.deviation if self.at_most else abs(self.deviation)) <= self.tolerance


def gavel_json(*arguments: str) -> Any:
    """Run a command of `gavel` and return its JSON."""
    command = [sys.executable, "-m", "gavel", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def check_pipedream(models: dict[str, Any]) -> Iterator[Check]:
    """Times of the best pipelines, through `gavel plan GRAPH`."""
    for model, answers in models.items():
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / "graph.txt"
            graph.write_text(answers["graph_txt"], encoding="utf-8")
            for case in answers["cases"]:
                levels = list(zip(case["gpus_per_level"], case["bandwidth_bytes_per_s"], strict=True))
                arguments = [part for n, speed in levels for part in ("--level", f"{n}:{speed}")]
                flags = {"straight": "--straight", "use_fewer": "--use-fewer"}
                flags["count_activation_transfers"] = "--activation-transfers"
                arguments += [option for field, option in flags.items() if case[field]]
                if case["memory_bytes"] is not None:
                    arguments += ["--memory", str(case["memory_bytes"])]
                answer = gavel_json("plan", str(graph), "--as", "pipedream", *arguments)
                name = f"{model} {'×'.join(str(n) for n, _ in levels)}"
                for field in ("bottleneck_stage_s", "data_parallel_s", "single_gpu_s"):
                    yield Check(f"{name} {field}", case["expected"][field], answer[field], STAGES)


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


def _transformer(inputs: dict[str, Any]) -> Transformer:
    return Transformer(
        **{field: inputs[field] for field in ("layers", "hidden", "heads", "sequence", "vocabulary")}
    )


def _evaluate(inputs: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return what `gavel plan --evaluate` prints for one plan on A100s."""
    shape = "layers={layers},hidden={hidden},heads={heads},seq={sequence},vocab={vocabulary}".format(**inputs)
    (plan_data,) = gavel_json(
        *("plan", "--gpt", shape, "--batch", str(inputs["global_batch"])),
        *("--cluster", f"a100={inputs['gpus']}", "--gpus-per-node", str(inputs["gpus_per_node"])),
        *("--evaluate", plan.label.replace("·", "-")),
    )["plans"]
    return dict(plan_data)


CHECKS: dict[str, Callable[[Any], Iterator[Check]]] = {
    "pipedream": check_pipedream,
    "megatron_table_1": check_table_1,
    "megatron_table_2_ptd": check_table_2,
    "schedules": check_schedules,
    "two_bw_versions": check_two_bw_versions,
    "stash_versions": check_stash_versions,
    "activation_memory": check_activations,
}


def main() -> None:
    """Print a row per figure, and what is not checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["planner"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--topic", choices=sorted(CHECKS), action="append", help="check only this topic")
    arguments = parser.parse_args()
    cases = json.loads(arguments.file.read_text(encoding="utf-8"))["dev"]
    short = 0
    for topic, answers in cases.items():
        if arguments.topic and topic not in arguments.topic:
            continue
        if topic not in CHECKS:
            print(f"{topic}: not checked")
            continue
        print(f"{topic}\n{'':2}{'':46} {'expected':>14} {'ours':>14} {'deviation':>10}")
        for check in CHECKS[topic](answers):
            short += not check.holds
            mark = " " if check.holds else "✗"
            print(
                f"{mark:2}{check.case:46} {check.expected:14.6g} {check.answer:14.6g} {check.deviation:+10.2g}"
            )
    if short:
        sys.exit(f"{short} figures fall short")


if __name__ == "__main__":
    main()
