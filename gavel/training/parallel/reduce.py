"""Gradients before an update: summed over copies and tied weights, and clipped.

Every sum is in a fixed order, so a repeated run gives the same bits. The norm for clipping is summed layer by layer, so
that it does not depend on how the layers are divided into stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_BYTES = 25 << 20


def sum_over(group: dist.ProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Replace the tensors by their sums over a group, in buckets."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts):
            tensor.copy_(part.view_as(tensor))


def clip(
    gradients: Sequence[tuple[int | None, Tensor]],
    layers: int,
    norm_max: float,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> None:
    """Scale gradients so that the norm over all layers of the model is at most `norm_max`.

    `gradients` are those of this rank, each with its layer, or with None if another rank counts it.
    """
    squares = torch.zeros(layers, dtype=torch.float64, device=device)
    for layer, gradient in gradients:
        if layer is not None:
            # Embeddings may have sparse gradients, which cannot be summed over ranks, but clipped.
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            squares[layer] += torch.linalg.vector_norm(values, dtype=torch.float64).square()
    if group is not None:
        # Every layer is in one stage: unless it is split, this only adds zeros.
        dist.all_reduce(squares, group=group)
    # A tensor: a GPU is not waited for.
    scale = (norm_max / (squares.sum().sqrt() + 1e-6)).clamp(max=1.0)
    for _, gradient in gradients:
        gradient.mul_(scale)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in order, divided where the type changes or a bucket is full."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size >= BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket
