"""A training script with a pipeline, as users write them: the same file for every plan.

    python pipeline.py STEPS

The plan is that of `GAVEL_PLAN`. At the end, every rank prints a digest of each of its layers.
"""

import hashlib
import os
import sys

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from gavel.training import LeasedIterator, ResumableSampler, pace
from gavel.training.parallel import Pipeline


def main() -> None:
    """Train the model."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
    sampler = ResumableSampler(data, seed=9, rank=0, world=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    layers = [torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Dropout(0.4), torch.nn.Linear(16, 1)]
    pipe = Pipeline(layers, mse_loss, lambda parameters: torch.optim.AdamW(parameters, 0.05))
    steps = LeasedIterator(loader, checkpoint=pipe.checkpoint("checkpoints"), steps=int(sys.argv[1]))
    print("begins at", steps.step, flush=True)
    for batch in steps:
        pipe.step(batch)
        pace(float(os.environ.get("STEP_S", "0")))
    if not steps.finished:
        print("stopped at", steps.step)
        return
    for layer in pipe.layers:
        summed = hashlib.sha256()
        for value in layer.module.state_dict().values():
            summed.update(value.numpy().tobytes())
        print("layer", layer.name, summed.hexdigest())


if __name__ == "__main__":
    main()
