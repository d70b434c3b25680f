"""A small recurrent network learns to continue a rhyme, letter by letter. It can have several ranks."""

from __future__ import annotations

import argparse
import json
import os
import sys

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from gavel.training import LeasedIterator, ResumableSampler, TorchCheckpoint, pace

RHYME = (
    "one gpu waits, two gpus run, three gpus stop when the lease is done; four jobs save what five have begun. "
    * 8
)
LETTERS = sorted(set(RHYME))
LENGTH = 24


class Reader(torch.nn.Module):
    """A network that reads letters and predicts the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(len(LETTERS), 16)
        self.recur = torch.nn.GRU(16, 48, batch_first=True)
        self.guess = torch.nn.Linear(48, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return a score for each letter at each position."""
        return self.guess(self.recur(self.embed(letters))[0])


def report(**values: object) -> None:
    """Print a line of JSON, with one write: `print` needs two under torchrun, and ranks share the output."""
    sys.stdout.write(f"{json.dumps(values)}\n")
    sys.stdout.flush()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--step-s", type=float, default=0.0, help="duration of a step on a GPU of speed 1")
options = parser.parse_args()

ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
codes = torch.tensor([LETTERS.index(letter) for letter in RHYME])
pieces = codes.unfold(0, LENGTH + 1, 3).contiguous()
data = TensorDataset(pieces[:, :-1], pieces[:, 1:])
loader = DataLoader(data, batch_size=16, sampler=ResumableSampler(data, seed=3))
reader = Reader()
model: torch.nn.Module = DistributedDataParallel(reader) if ranks > 1 else reader
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

checkpoint = TorchCheckpoint("checkpoints/text", model=reader, optimizer=optimizer)
steps = LeasedIterator(loader, checkpoint=checkpoint, steps=options.steps)
report(at="start", step=steps.step, rank=rank, on=os.environ.get("GAVEL_WORKER_TYPE"))
loss = torch.tensor(float("nan"))
for letters, next_letters in steps:
    loss = torch.nn.functional.cross_entropy(model(letters).flatten(0, 1), next_letters.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.step_s:
        pace(options.step_s)
    if steps.step % 50 == 0 and rank == 0:
        report(step=steps.step, loss=round(loss.item(), 4))
event = "end" if steps.finished else "lease over"
report(at=event, step=steps.step, rank=rank, loss=round(loss.item(), 4))
if ranks > 1:
    torch.distributed.destroy_process_group()
