"""A small transformer learns to continue a rhyme, letter by letter; a plan may cut it into stages (docs/plans.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from gavel.training import LeasedIterator, ResumableSampler, pace
from gavel.training.parallel import Pipeline

RHYME = (
    "a model too large for a single card is cut into stages, and that is not hard; "
    "the stages move on when a lease is done, from four of the cards to two or to one. " * 4
)
LETTERS = sorted(set(RHYME))
LENGTH, WIDTH, HEADS, BLOCKS, BATCH = 32, 128, 4, 6, 5


class Embed(torch.nn.Module):
    """A vector for each letter and each place."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = torch.nn.Embedding(len(LETTERS), WIDTH)
        self.place = torch.nn.Embedding(LENGTH, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return a vector for each letter."""
        return self.letter(letters) + self.place.weight


class Block(torch.nn.Module):
    """Attention to the letters before, then two layers on each letter by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the next block reads."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        query, key, value = heads.chunk(3, dim=-1)
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(-2, -3).flatten(-2)))
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norms[1](x)))))


class Head(torch.nn.Module):
    """The scores of the letters that may come next."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.score = torch.nn.Linear(WIDTH, len(LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each letter at each place."""
        return self.score(self.norm(x))


def loss_of(scores: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all letters."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), letters.flatten())


def report(**values: object) -> None:
    """Print a line of JSON, with one write: ranks share the output."""
    sys.stdout.write(f"{json.dumps(values)}\n")
    sys.stdout.flush()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.0, help="duration of a step on one GPU of speed 1")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
codes = torch.tensor([LETTERS.index(letter) for letter in RHYME])
pieces = codes.unfold(0, LENGTH + 1, 2).contiguous()
data = TensorDataset(pieces[:, :-1], pieces[:, 1:])
sampler = ResumableSampler(data, seed=4, rank=0, world=1)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
layers = {"embed": Embed(), **{f"block{number}": Block() for number in range(BLOCKS)}, "head": Head()}
pipe = Pipeline(layers, loss_of, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
steps = LeasedIterator(loader, checkpoint=pipe.checkpoint("checkpoints/gpt"), steps=options.steps)

# An emulated step: the work of one GPU, divided over the ranks, and the time in which the pipeline fills.
ranks = int(os.environ.get("WORLD_SIZE", "1"))
step_s = options.step_s / ranks * (1 + (ranks - 1) / BATCH)
loss: torch.Tensor | None = None
if pipe.is_last:
    report(at="start", step=steps.step, ranks=ranks)
for batch in steps:
    loss = pipe.step(batch)
    if step_s:
        pace(step_s)
    # Inside the loop, `steps.step` does not count the present step yet.
    if loss is not None and steps.step % 5 == 4:
        report(step=steps.step + 1, loss=loss.item())
if pipe.is_last:
    event = "end" if steps.finished else "lease over"
    report(at=event, step=steps.step, loss=None if loss is None else loss.item())
