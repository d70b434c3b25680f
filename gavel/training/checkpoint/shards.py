"""Tensors that are spread over the ranks of a job, in the files of a set, so that any number of ranks can read them.

The planner of PyTorch's distributed checkpoint decides which rank saves which part of a tensor, and which parts a rank
reads. It does neither here: each rank collects its parts, which become one of its files in the set, and rank 0 gets the
layout, which names the file and the key of every part. Both are plain data, read without running any code in them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from gavel.training.checkpoint import torch_state
from gavel.training.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
# By the name of a tensor: its type, its size, and offsets, sizes, file and key of each of its parts.
Layout = dict[str, Any]


def collect(tensors: Tensors, file: str, group: Any) -> tuple[Tensors, Layout]:
    """Return the parts that this rank saves in `file`, and on rank 0 the layout of all parts.

    All ranks call this at once. The parts are those of the state, not copies.
    """
    writer = _Collector(file)
    with _together("the ranks cannot divide the state among them"):
        save(tensors, storage_writer=writer, process_group=group, no_dist=group is None)
    return writer.parts, writer.layout


def restore(tensors: Tensors, directory: Path, layout: Layout, group: Any) -> None:
    """Read these tensors from the files of a set, in place. All ranks call this at once."""
    for name, tensor in tensors.items():
        size = layout[name][1]
        if tuple(size) != tuple(tensor.shape):
            raise CheckpointError(
                f"the checkpoint does not fit {name}: its size is {tuple(size)} there, and {tuple(tensor.shape)} here"
            )
    reader = _Reader(directory, layout)
    with _together(f"cannot read the checkpoint {directory}"):
        load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)


@contextlib.contextmanager
def _together(problem: str) -> Iterator[None]:
    """Enclose a call that all ranks make at once, and raise the error of the first rank that failed."""
    try:
        with warnings.catch_warnings():
            # A single process is warned that it is one.
            warnings.simplefilter("ignore", UserWarning)
            yield
    except CheckpointException as fault:
        rank, (error, _) = min(fault.failures.items())
        raise CheckpointError(f"{problem}: rank {rank}: {error}") from fault


class _Collector(StorageWriter):
    """Collects the parts that the planner gives to this rank, and on rank 0 the layout."""

    def __init__(self, file: str) -> None:
        self.parts: Tensors = {}
        self.layout: Layout = {}
        self._file = file

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        """Collect the parts of this plan."""
        results = []
        for item in plan.items:
            part = planner.resolve_data(item)
            assert isinstance(part, torch.Tensor)
            key = f"{item.index.fqn} {' '.join(map(str, item.index.offset or ()))}".strip()
            self.parts[key] = part
            results.append(WriteResult(item.index, part.nbytes, (self._file, key)))
        future: Future[list[Any]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Make the layout, on rank 0."""
        places = {_place(result.index): result.storage_data for rank in results for result in rank}
        for name, entry in metadata.state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata)
            chunks = [
                [list(chunk.offsets), list(chunk.sizes), *places[name, tuple(chunk.offsets)]]
                for chunk in entry.chunks
            ]
            self.layout[name] = [entry.properties.dtype, list(entry.size), chunks]

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: there is a new collector for each checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **words: Any) -> None:
        """Do nothing: nothing is written here."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return whether this is a place for checkpoints: there is none."""
        return checkpoint_id is None


class _Reader(StorageReader):
    """Reads parts from the files of a set."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self._directory, self._layout = directory, layout
        # The file and the key of each part, by its tensor's name and its offsets.
        self._places = {
            (name, tuple(offsets)): (file, key)
            for name, (_, _, chunks) in layout.items()
            for offsets, _, file, key in chunks
        }

    def read_metadata(self, *args: Any, **words: Any) -> Metadata:
        """Return the layout in the planner's terms."""
        entries: dict[str, Any] = {}
        for name, (dtype, size, chunks) in self._layout.items():
            parts = [
                ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                for offsets, sizes, _, _ in chunks
            ]
            properties = TensorProperties(dtype=dtype)
            entries[name] = TensorStorageMetadata(properties, torch.Size(size), parts)
        return Metadata(entries)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the parts of this plan into the tensors, one file after another."""
        by_file: dict[str, list[tuple[str, Any]]] = {}
        for item in plan.items:
            file, key = self._places[_place(item.storage_index)]
            by_file.setdefault(file, []).append((key, item))
        for file, items in by_file.items():
            parts = torch_state.read(self._directory / file)
            for key, item in items:
                part = parts[key]
                for axis, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                    part = part.narrow(axis, begin, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: there is a new reader for each checkpoint."""

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **words: Any) -> None:
        """Do nothing: the layout is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return whether this is a place of checkpoints: there is none."""
        return checkpoint_id is None


def _place(index: Any) -> tuple[str, tuple[int, ...]]:
    return index.fqn, tuple(index.offset or ())


def state_of(model: Any, optimizer: Any) -> tuple[Tensors, Mapping[str, Any]]:
    """Return the state of a model and its optimizer: the tensors themselves, not copies, and all other values."""
    options = state_dict.StateDictOptions(flatten_optimizer_state_dict=True)
    optimizers = [] if optimizer is None else [optimizer]
    of_model, of_optimizer = state_dict.get_state_dict(model, optimizers, options=options)
    whole = {**_prefixed("model", of_model), **_prefixed("optimizer", of_optimizer)}
    tensors = {name: value for name, value in whole.items() if isinstance(value, torch.Tensor)}
    return tensors, {name: value for name, value in whole.items() if name not in tensors}


def set_state(model: Any, optimizer: Any, state: Mapping[str, Any]) -> None:
    """Give a model and its optimizer this state, whose tensors and values are those of `state_of`."""
    state_dict.set_state_dict(
        model,
        [] if optimizer is None else [optimizer],
        model_state_dict=_of_prefix("model", state),
        optim_state_dict=_of_prefix("optimizer", state),
        options=state_dict.StateDictOptions(flatten_optimizer_state_dict=True),
    )


def _prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def _of_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in state.items() if name.startswith(start)}
