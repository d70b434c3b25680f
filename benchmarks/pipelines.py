"""Pipelines of stages that only wait: the time of a step, measured on ranks with gloo, and as simulated.

    python -m benchmarks.pipelines [--ranks 4] [--microbatches 4] [--steps 12]

The stages sleep instead of computing, so that ranks do not compete for cores: what is measured is the schedule, its
messages and its waits. The simulation knows only the sleeps. Then the same sleeps under PyTorch's own 1F1B. Needs
PyTorch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gavel.training.parallel.actions import FLUSHING, actions_of
from gavel.training.parallel.check import check_actions

ROOT = Path(__file__).parents[1]
# How long a stage sleeps for a microbatch, forward and backward.
FORWARD_S, BACKWARD_S = 0.02, 0.04
CHUNKS = {"interleaved": 2}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "2bw", "stash")


def stages_of(count: int, forward_s: float, backward_s: float) -> list[Any]:
    """Return layers that sleep, forward and backward, each with a weight."""
    import torch
    from torch import Tensor, nn

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            time.sleep(forward_s)
            return x * weight

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            time.sleep(backward_s)
            return gradient * weight, (gradient * x).sum()

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.01))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = Sleep.apply(x, self.weight)
            return result

    return [Stage() for _ in range(count)]


def train(options: argparse.Namespace) -> None:
    """Train as a rank, by the plan of the environment or by PyTorch, and print when each step ends."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import mse_loss

    torch.set_num_threads(1)
    batch = torch.ones(options.microbatches, 8), torch.zeros(options.microbatches, 8)
    if options.train == "torch":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        (layer,) = stages_of(1, FORWARD_S, BACKWARD_S)
        stage = PipelineStage(layer, rank, options.ranks, torch.device("cpu"))
        schedule = Schedule1F1B(stage, options.microbatches, loss_fn=mse_loss)
        optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
        is_last = rank == options.ranks - 1

        def step() -> None:
            inputs, target = batch
            named: dict[str, Any] = {"target": target} if is_last else {}
            schedule.step(*([inputs] if rank == 0 else []), **named)
            optimizer.step()
            optimizer.zero_grad()

    else:
        from gavel.training.parallel import Pipeline

        chunks = CHUNKS.get(options.train, 1)
        layers = stages_of(options.ranks * chunks, FORWARD_S / chunks, BACKWARD_S / chunks)
        pipe = Pipeline(layers, mse_loss, lambda parameters: torch.optim.SGD(parameters, 1e-3))
        is_last = pipe.is_last

        def step() -> None:
            pipe.step(batch)

    for _ in range(options.steps):
        step()
        if is_last:
            print(f"end {time.perf_counter():.6f}", flush=True)


def simulated_s(name: str, ranks: int, microbatches: int) -> float:
    """Return the time of a step without messages: of one that flushes, or of one in the middle of many."""
    chunks = CHUNKS.get(name, 1)

    def makespan(updates: int) -> float:
        actions = actions_of(name, ranks, microbatches, chunks, updates)
        return check_actions(actions, FORWARD_S / chunks, BACKWARD_S / chunks).makespan

    return makespan(1) if name in FLUSHING else (makespan(12) - makespan(6)) / 6


def measured_s(name: str, options: argparse.Namespace, folder: str) -> float:
    """Return the median time of a step."""
    plan = Path(folder) / "plan.json"
    fields = {"schedule": name, "pipeline": options.ranks, "microbatch": 1, "chunks": CHUNKS.get(name, 1)}
    plan.write_text(json.dumps({"format": "gavel-plan/1", **fields}), encoding="utf-8")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GAVEL_PLAN": str(plan)}
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(options.ranks),
        ),
        *("-m", "benchmarks.pipelines", "--train", name, "--ranks", str(options.ranks)),
        *("--microbatches", str(options.microbatches), "--steps", str(options.steps)),
    ]
    output = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout
    ends_s = [float(line.split()[1]) for line in output.splitlines() if line.startswith("end ")]
    durations_s = [end_s - begin_s for begin_s, end_s in itertools.pairwise(ends_s)]
    # The first steps fill the pipeline.
    return statistics.median(durations_s[len(durations_s) // 3 :])


def main() -> None:
    """Measure every schedule, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--train", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options)
        return
    measured = {}
    print("schedule      simulated s  measured s  measured / simulated")
    with tempfile.TemporaryDirectory() as folder:
        for name in (*SCHEDULES, "torch"):
            expected_s = simulated_s("1f1b" if name == "torch" else name, options.ranks, options.microbatches)
            measured[name] = measured_s(name, options, folder)
            title = "torch's 1f1b" if name == "torch" else name
            print(
                f"{title:<13} {expected_s:11.4f}  {measured[name]:10.4f}  {measured[name] / expected_s:20.3f}",
                flush=True,
            )
    print(f"\n2bw runs {measured['1f1b'] / measured['2bw']:.2f} times as many steps as 1f1b")
    print(f"1f1b takes {measured['1f1b'] / measured['torch']:.3f} of the time of torch's")


if __name__ == "__main__":
    main()
