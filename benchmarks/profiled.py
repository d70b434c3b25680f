"""From a model to a step: profiled here, planned, trained by the plan on processes of this machine, and timed.

    python -m benchmarks.profiled [--ranks 2] [--steps 12]

prints, for each plan, the predicted and the measured seconds of a step. Predictions are for ranks that do not disturb
each other: give each rank a core of its own. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BATCH, WIDTH, WORDS, LENGTH = 32, 256, 2_000, 64
# What gloo moves between two processes of one machine, in GB per second.
LINK_GB_PER_S = 1.5


def train(steps: int) -> None:
    """Train a small transformer of unequal layers, and print the seconds of each step on the rank with the loss."""
    import torch
    from torch import Tensor, nn

    from gavel.training.parallel import Pipeline

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, factor: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
            self.inner = nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, factor * WIDTH),
                nn.GELU(),
                nn.Linear(factor * WIDTH, WIDTH),
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            result: Tensor = x + self.inner(x)
            return result

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())

    layers: dict[str, nn.Module] = {"embed": nn.Embedding(WORDS, WIDTH)}
    layers |= {f"h.{index}": Block(factor) for index, factor in enumerate((1, 2, 4, 8, 4, 2))}
    layers["head"] = nn.Linear(WIDTH, WORDS)
    pipe = Pipeline(layers, loss, torch.optim.Adam)
    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    for _ in range(steps):
        begin_s = time.perf_counter()
        value = pipe.step((words, words))
        if value is not None:
            # One write a line, or lines of several ranks mix.
            sys.stdout.write(f"step {time.perf_counter() - begin_s:.6f}\n")
            sys.stdout.flush()


def _run(arguments: list[str], variables: dict[str, str]) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


def plans_of(profile: Path, ranks: int) -> list[dict[str, Any]]:
    """Return the best plan, and the best in depth alone, for so many ranks."""
    common = [
        "-m",
        "gavel",
        "plan",
        str(profile),
        "--batch",
        str(BATCH),
        "--cluster",
        f"cpu={ranks}",
        "--json",
    ]
    common += ["--link", str(LINK_GB_PER_S)]
    labels = [f"p{ranks}-b{size}" for size in (2, 4, 8)] + [f"d{ranks}-b8"]
    outputs = [_run([*common, "--gpus", str(ranks)], {})]
    outputs += [_run([*common, "--evaluate", label], {}) for label in labels]
    return [json.loads(output)["plans"][0] for output in outputs]


def main() -> None:
    """Profile, plan, train and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.steps)
        return
    itself = ["-m", "benchmarks.profiled", "--train", "--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        profile, file = Path(folder) / "model.profile.json", Path(folder) / "plan.json"
        _run(itself, {"GAVEL_PROFILE": str(profile)})
        print("plan            predicted s  measured s  measured / predicted")
        for plan in plans_of(profile, options.ranks):
            file.write_text(json.dumps(plan), encoding="utf-8")
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
            output = _run([*torchrun, *itself], {"GAVEL_PLAN": str(file)})
            times_s = [float(line.split()[1]) for line in output.splitlines() if line.startswith("step ")]
            # The first steps allocate memory.
            measured_s = statistics.median(times_s[len(times_s) // 4 :])
            ratio = measured_s / plan["step_s"]
            print(
                f"{plan['label']:<15} {plan['step_s']:11.4f}  {measured_s:10.4f}  {ratio:20.2f}", flush=True
            )


if __name__ == "__main__":
    main()
