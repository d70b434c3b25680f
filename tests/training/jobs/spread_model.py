"""A training script with a model that is spread over its ranks: FSDP, or without any spreading on one rank.

    python spread_model.py STEPS

All ranks see the same batch, which follows from the step, so any number of ranks computes the same bits. At the end,
rank 0 prints a digest of the whole state.
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gavel.training import LeasedIterator, ShardedCheckpoint, pace, time_left_s


def main() -> None:
    """Train the model, and write a line for each step."""
    steps, hold_at = int(sys.argv[1]), int(os.environ.get("HOLD_AT", "0"))
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    # The first layer has five rows, which two ranks cannot divide evenly.
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4))
    if world > 1:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (world,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    checkpoint = ShardedCheckpoint(
        "checkpoints", model=model, optimizer=optimizer, scheduler=scheduler, background=True
    )
    batches = LeasedIterator(range(4), checkpoint=checkpoint, steps=steps, every_steps=3)
    print("begins at", batches.step, flush=True)
    with open(f"samples-{rank}.txt", "a", encoding="ascii") as samples:
        for _ in batches:
            number = batches.step
            optimizer.zero_grad()
            batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
            (model(batch).sum(1) - batch.sum(1)).pow(2).mean().backward()
            optimizer.step()
            scheduler.step()
            print(number, file=samples, flush=True)
            pace(float(os.environ.get("STEP_S", "0")))
            while batches.step + 1 == hold_at and time_left_s():
                time.sleep(0.01)
    if batches.finished:
        print("digest", digest(model, optimizer))
    if world > 1:
        dist.destroy_process_group()


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Hash every bit of the gathered state, and the other values of the optimizer."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True)
    summed = hashlib.sha256()
    for state in get_state_dict(model, optimizer, options=options):
        for name, value in sorted(state.items()):
            content = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
            summed.update(name.encode() + content)
    return summed.hexdigest()


if __name__ == "__main__":
    main()
