"""A training script as users write them: a small model with dropout, AdamW and a schedule, on one rank or more.

    python small_model.py STEPS [plain|resumable] [WORKERS]

Every step is a line in `samples-RANK.txt`; at the end, a digest of the training state is printed.
"""

import hashlib
import os
import random
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from gavel.training import LeasedIterator, ResumableSampler, TorchCheckpoint, pace, time_left_s


def main() -> None:
    """Train the model, and write a line for each step."""
    arguments = dict(enumerate(sys.argv))
    # In this step the rank waits for the end of its lease.
    hold_at = int(os.environ.get("HOLD_AT", "0"))
    steps, kind, workers = int(arguments[1]), arguments.get(2, "resumable"), int(arguments.get(3, "0"))
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(rank)
    random.seed(rank)
    data = TensorDataset(torch.arange(61), torch.randn(61, 6, generator=torch.Generator().manual_seed(5)))
    if kind == "resumable":
        loader = DataLoader(data, batch_size=4, sampler=ResumableSampler(data, seed=9), num_workers=workers)
    else:
        loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.4), torch.nn.Linear(16, 1))
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    checkpoint = TorchCheckpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)
    batches = LeasedIterator(loader, checkpoint=checkpoint, steps=steps)
    print("begins at", batches.step, flush=True)
    with open(f"samples-{rank}.txt", "a", encoding="ascii") as samples:
        for indices, batch in batches:
            optimizer.zero_grad()
            loss = (model(batch).squeeze() - batch.sum(1) - random.random()).pow(2).mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(batches.epoch, *indices.tolist(), file=samples, flush=True)
            pace(float(os.environ.get("STEP_S", "0")))
            while batches.step + 1 == hold_at and time_left_s():
                time.sleep(0.01)
    if batches.finished:
        print("digest", digest(model, optimizer))
    else:
        print("stopped at", batches.step)
    if world > 1:
        torch.distributed.destroy_process_group()


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Hash every bit of the parameters, the optimizer's moments, and the state of the random numbers."""
    summed = hashlib.sha256()
    for value in model.parameters():
        summed.update(value.detach().numpy().tobytes())
        for moment in ("exp_avg", "exp_avg_sq"):
            summed.update(optimizer.state[value][moment].numpy().tobytes())
    summed.update(torch.get_rng_state().numpy().tobytes())
    summed.update(repr(random.getstate()).encode())
    return summed.hexdigest()


if __name__ == "__main__":
    main()
