"""Pipelines of stages that only wait: the time of a step, measured on ranks with gloo, and as simulated.

    python -m benchmarks.pipelines [--ranks 4] [--microbatches 4] [--steps 12]

The stages sleep instead of computing, so that ranks do not compete for cores: what is measured is the schedule, its
messages and its waits. The simulation knows only the sleeps. Then the same sleeps under PyTorch's own schedules. All
ranks wake at the same moments, so they ask for real-time priority: otherwise the scheduler of a system with fewer cores
lets them wait for each other and for other processes. Needs PyTorch.
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

from benchmarks.priority import ask_for_priority
from gavel.training.parallel.actions import FLUSHING, SCHEDULES, actions_of
from gavel.training.parallel.check import check_actions

ROOT = Path(__file__).parents[1]
# How long a stage sleeps for a microbatch, forward and backward.
FORWARD_S, BACKWARD_S = 0.02, 0.04
OF_TORCH = {"torch's 1f1b": "1f1b", "torch's interleaved": "interleaved"}


def stages_of(count: int, forward_s: float, backward_s: float) -> list[Any]:
    """Return layers that sleep, forward and backward, each with a weight."""
    import torch
    from torch import Tensor, nn

    def sleep_until(end_s: float) -> None:
        time.sleep(max(0.0, end_s - time.perf_counter()))

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            end_s = time.perf_counter() + forward_s
            ctx.save_for_backward(x, weight)
            output = x * weight
            sleep_until(end_s)
            return output

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            end_s = time.perf_counter() + backward_s
            x, weight = ctx.saved_tensors
            gradients = gradient * weight, (gradient * x).sum()
            sleep_until(end_s)
            return gradients

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.01))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = Sleep.apply(x, self.weight)
            return result

    return [Stage() for _ in range(count)]


def chunks_of(name: str) -> int:
    """Return the number of chunks a rank."""
    return 2 if name.endswith("interleaved") else 1


def train(options: argparse.Namespace) -> None:
    """Train as a rank, by the plan of the environment or by PyTorch, and print when each step ends."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import mse_loss

    torch.set_num_threads(1)
    ask_for_priority()
    batch = torch.ones(options.microbatches, 8), torch.zeros(options.microbatches, 8)
    chunks = chunks_of(options.train)
    if options.train in OF_TORCH:
        from torch.distributed import pipelining

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        count = options.ranks * chunks
        layers = stages_of(chunks, FORWARD_S / chunks, BACKWARD_S / chunks)
        stages: list[Any] = [
            pipelining.PipelineStage(layer, rank + chunk * options.ranks, count, torch.device("cpu"))
            for chunk, layer in enumerate(layers)
        ]
        schedule = (
            pipelining.Schedule1F1B(stages[0], options.microbatches, loss_fn=mse_loss)
            if chunks == 1
            else pipelining.ScheduleInterleaved1F1B(stages, options.microbatches, loss_fn=mse_loss)
        )
        optimizer = torch.optim.SGD([layer.weight for layer in layers], 1e-3)
        is_last = rank == options.ranks - 1

        def step() -> None:
            inputs, target = batch
            named: dict[str, Any] = {"target": target} if is_last else {}
            schedule.step(*([inputs] if rank == 0 else []), **named)
            optimizer.step()
            optimizer.zero_grad()

    else:
        from gavel.training.parallel import Pipeline

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
    chunks = chunks_of(name)

    def makespan(updates: int) -> float:
        actions = actions_of(name, ranks, microbatches, chunks, updates)
        return check_actions(actions, FORWARD_S / chunks, BACKWARD_S / chunks).makespan

    return makespan(1) if name in FLUSHING else (makespan(12) - makespan(6)) / 6


def measured_s(name: str, options: argparse.Namespace, folder: str) -> float:
    """Return the median time of a step."""
    plan = Path(folder) / "plan.json"
    fields = {
        "schedule": OF_TORCH.get(name, name),
        "pipeline": options.ranks,
        "microbatch": 1,
        "chunks": chunks_of(name),
    }
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
    if ask_for_priority():
        # The ranks ask for themselves, once they have loaded PyTorch.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    else:
        print(
            "without real-time priority, which this system refuses: on a busy machine all steps take longer\n"
        )
    print("schedule             simulated s  measured s  measured / simulated")
    with tempfile.TemporaryDirectory() as folder:
        for name in (*SCHEDULES, *OF_TORCH):
            expected_s = simulated_s(OF_TORCH.get(name, name), options.ranks, options.microbatches)
            measured[name] = measured_s(name, options, folder)
            print(
                f"{name:<20} {expected_s:11.4f}  {measured[name]:10.4f}  {measured[name] / expected_s:20.3f}",
                flush=True,
            )
    print(f"\n2bw runs {measured['1f1b'] / measured['2bw']:.2f} times as many steps as 1f1b")
    for name, own in OF_TORCH.items():
        print(f"{own} takes {measured[own] / measured[name]:.3f} of the time of {name}")


if __name__ == "__main__":
    main()
