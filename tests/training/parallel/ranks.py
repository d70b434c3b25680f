"""Ranks as processes that exchange messages with gloo, and a model with everything that a plan could get wrong."""

from __future__ import annotations

import io
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# How long a rank waits for another in one exchange.
PATIENCE_S = 60.0

# The server loads PyTorch once; the processes of ranks are forks of it.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.training.parallel.ranks"])
# Sums depend on the number of threads, so the process of the tests has as many as the ranks.
torch.set_num_threads(1)
# The first optimizer of a process imports half of PyTorch, which takes seconds.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)


def run_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call the function in `world` processes that are the ranks of one job; return the results, by rank.

    Results are tensors, numbers, text, and tuples, lists and dicts of them.
    """
    pipes, ranks = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            receiving, sending = _processes.Pipe(duplex=False)
            process = _processes.Process(
                target=_run_rank, args=(rank, world, f"{folder}/store", sending, function, arguments)
            )
            process.start()
            sending.close()
            pipes.append(receiving)
            ranks.append(process)
        try:
            results = [_result(rank, pipe) for rank, pipe in enumerate(pipes)]
        finally:
            for process in ranks:
                process.join(0.1)
                process.kill()
                process.join()
    failures = [failure for failure, _ in results if failure is not None]
    assert not failures, "\n".join(failures)
    return [result for _, result in results]


def _result(rank: int, pipe: multiprocessing.connection.Connection) -> tuple[str | None, Any]:
    """Wait for the answer of a rank, however long it computes: every exchange between ranks has a limit."""
    try:
        failure, result = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=True)
    except EOFError:
        return f"rank {rank} died", None
    return failure, result


def _run_rank(
    rank: int,
    world: int,
    store: str,
    pipe: multiprocessing.connection.Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    try:
        timeout = timedelta(seconds=PATIENCE_S)
        dist.init_process_group("gloo", f"file://{store}", timeout, world, rank)
        answer = (None, function(*arguments))
    except BaseException:
        answer = (f"rank {rank}: {traceback.format_exc()}", None)
    # By value: a pipe of multiprocessing would share the memory of tensors with a process that ends now.
    file = io.BytesIO()
    torch.save(answer, file)
    pipe.send_bytes(file.getvalue())
    pipe.close()
    # Without the clean-up of threads that may wait for ranks that have gone.
    os._exit(0)


class Block(nn.Module):
    """A layer with a residual connection, and dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, changed a little."""
        return x + self.dropout(torch.tanh(self.inner(x)))


def model(
    layers: int = 4, width: int = 6, dropout: float = 0.3, dtype: torch.dtype = torch.float32
) -> nn.Sequential:
    """Return a model whose weights are the same in every process."""
    torch.manual_seed(7)
    blocks = [nn.Linear(3, width), *(Block(width, dropout) for _ in range(layers - 2)), nn.Linear(width, 2)]
    return nn.Sequential(*blocks).to(dtype)


def batches(count: int, samples: int = 8, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """Return batches that are the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(samples, 3, generator=generator, dtype=torch.float64).to(dtype),
            torch.randn(samples, 2, generator=generator, dtype=torch.float64).to(dtype),
        )
        for _ in range(count)
    ]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return plain SGD."""
    return torch.optim.SGD(parameters, 0.1)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay."""
    return torch.optim.AdamW(parameters, 0.01)
