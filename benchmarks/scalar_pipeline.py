"""Two scalar stages, trained by `gavel.training.parallel` on two processes, for `benchmarks.reference`.

    python -m benchmarks.scalar_pipeline RANK STORE < cases.json

prints, for each case, the weight of this rank after every update. Ranks meet in the file STORE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

RANKS = 2
TIMEOUT_S = 300


def trajectories(cases: list[dict[str, Any]]) -> list[list[list[float]]]:
    """Return, by rank and case, the weights after every update. Needs PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.scalar_pipeline"]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(Path(folder) / "store")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write(json.dumps(cases))
                rank.stdin.close()
                rank.stdin = None
            outputs = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return [json.loads(output) for output in outputs]


def main(rank: int, store: str) -> None:
    """Train as one rank."""
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn

    from gavel.training.parallel import Pipeline, Plan

    class Scale(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * x

    def half_square(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2).mean() / 2

    def note(weight: Tensor, weights: list[float], *_: object) -> None:
        weights.append(weight.item())

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    results = []
    for case in json.load(sys.stdin):
        schedule = "1f1b" if case["mode"] == "flush" else case["mode"]
        pipe = Pipeline(
            [Scale(case["u0"]), Scale(case["v0"])],
            half_square,
            partial(torch.optim.SGD, lr=case["learning_rate"]),
            Plan(schedule, RANKS, microbatch=1),
        )
        weights = [pipe.parameters[0].item()]
        assert pipe.optimizer is not None
        pipe.optimizer.register_step_post_hook(partial(note, pipe.parameters[0], weights))
        per_update = case["microbatches_per_update"]
        data = (torch.tensor(case[key], dtype=torch.float64).split(per_update) for key in ("x", "target"))
        for batch in zip(*data, strict=True):
            pipe.step(batch)
        pipe.drain()
        results.append(weights)
    print(json.dumps(results), flush=True)
    # A rank that has gone must not end the other one's process group.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
