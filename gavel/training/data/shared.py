"""`shared_prep`: the jobs of a group on a node prepare each batch once, and pass it to each other.

    loader = shared_prep(DataLoader(data, batch_size=256, shuffle=True, num_workers=4), group="sweep-7")

All of them go through an epoch in one order, which depends on the group and the epoch, and each batch is prepared by
one of them (`staging.py`). Random numbers that `prepare` draws come from the group, the epoch and the sample, in any
process. Without other members, and where there is no cache, a job prepares its batches itself, in the same order.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import json
import logging
import math
import os
import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from gavel.training.data.staging import Staging
from gavel.training.environment import ranks_of
from gavel.training.errors import NoLength

log = logging.getLogger("gavel.training")

# How often to look for batches to prepare.
PAUSE_S = 0.02


def shared_prep(loader: Any, *, group: str, patience_s: float = 30.0) -> Any:
    """Return a loader that shares the preparation of its batches with the jobs of the same group on this node.

    `loader` is a DataLoader over a map-style data set. Members of a group differ in the model only: data, batch size
    and preparation are the same. A member that takes no batch for `patience_s` is left behind, and finishes its epoch
    alone.
    """
    if not isinstance(group, str) or not group:
        raise ValueError(
            f"group is {group!r}: expected a text that all jobs of a sweep share, such as 'sweep-7'"
        )
    if not 0 < patience_s < math.inf:
        raise ValueError(f"patience_s is {patience_s!r}: expected seconds above 0, such as 30")
    if getattr(loader, "batch_size", None) is None or not hasattr(loader.dataset, "__getitem__"):
        raise TypeError(
            f"loader is {loader!r}: expected a DataLoader with batch_size over a data set with __getitem__"
        )
    if ranks_of()[1] > 1:
        log.warning("gavel: shared_prep is for jobs of one rank: this job prepares its batches itself")
        return loader
    return SharedLoader(loader, group, patience_s)


class SharedLoader:
    """A loader of the batches of a group. `LeasedIterator` keeps its position."""

    def __init__(self, loader: Any, group: str, patience_s: float) -> None:
        samples, size = len(loader.dataset), loader.batch_size
        self._batches: int = samples // size if loader.drop_last else -(-samples // size)
        if not self._batches:
            raise NoLength(f"the loader has no batches: {samples} samples in batches of {size}")
        self.dataset, self.batch_size = loader.dataset, size
        self._loader, self._patience_s = loader, patience_s
        self._is_shuffled = type(loader.sampler).__name__ != "SequentialSampler"
        self._key = hashlib.blake2b(
            json.dumps([group, samples, size, loader.drop_last, self._is_shuffled, _name(loader)]).encode(),
            digest_size=16,
        )
        # The number of the next batch in the stream of all epochs, and the pass of the loop to which it belongs.
        self._next = self._pass = 0
        # Whether a loop has a pass that it has not ended, and whether the restored pass had its last batch.
        self._in_pass = self._is_over = False
        self._member: _Member | None = None
        log.info(
            "gavel: the order of the samples is that of the group %s, whatever the seed of this job", group
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self._batches

    def state_dict(self) -> dict[str, int]:
        """Return the position in the stream."""
        is_over = self._in_pass and self._next % self._batches == 0
        return {"next": self._next, "pass": self._pass, "is_over": is_over}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a position: alone up to the end of its epoch, then with the others."""
        self._next, self._pass = state["next"], state["pass"]
        self._is_over = bool(state.get("is_over"))

    def set_epoch(self, epoch: int) -> None:
        """Begin a pass of the loop. Another one than before begins a new epoch."""
        if epoch != self._pass:
            self._pass, self._next = epoch, -(-self._next // self._batches) * self._batches
            self._is_over = False

    def close(self) -> None:
        """Let the others of the group go on without this job, until its next epoch."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rest of the epoch."""
        if self._is_over:
            self._is_over = False
            return iter(())
        return self._rest(self._with_others() if self._joins() else self._alone())

    def _rest(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._in_pass = True
        try:
            yield from batches
        finally:
            self._in_pass = False

    def _joins(self) -> bool:
        """Return whether this job is a member for the epoch that begins."""
        if self._member is not None and self._member.staging.is_member:
            return True
        self.close()
        folder = os.environ.get("GAVEL_CACHE")
        # A job that resumes within an epoch finishes it alone.
        if folder and self._next % self._batches == 0:
            with contextlib.suppress(OSError):
                staging = Staging(os.path.join(folder, "staging", self._key.hexdigest()), self._patience_s)
                self._next = staging.join(self._batches, self._next)
                try:
                    self._member = _Member(self, staging)
                except BaseException:
                    staging.leave()
                    raise
        return self._member is not None

    def _with_others(self) -> Iterator[Any]:
        member, end, is_whole = self._member, self._next + self._batches, False
        if member is None:
            return
        try:
            while self._next < end:
                content = member.take(self._next)
                if content is None and not member.staging.is_member:
                    break
                batch = self._prepared(self._next) if content is None else _unpacked(content)
                self._next += 1
                yield batch
            is_whole = self._next == end
        finally:
            # The loop has ended within the epoch, or the others have left this job behind.
            if not is_whole:
                self.close()
        if not is_whole:
            log.warning("gavel: the group goes on without this job, which finishes its epoch alone")
            yield from self._alone()

    def _prepared(self, number: int) -> Any:
        """Return a batch that this process prepares itself."""
        (batch,) = self.loader_of([number])
        return batch

    def _alone(self) -> Iterator[Any]:
        end = (self._next // self._batches + 1) * self._batches
        for batch in self.loader_of(range(self._next, end)):
            self._next += 1
            yield batch

    def loader_of(self, numbers: Any, **options: Any) -> Any:
        """Return a DataLoader of these batches, with one worker at least: random numbers are drawn there.

        `numbers` is iterated anew in each pass of the loader. `options` are those of DataLoader.
        """
        import torch
        from torch.utils.data import DataLoader

        loader = self._loader
        dataset: Any = _Seeded(self.dataset, self._key.digest())
        return DataLoader(
            dataset,
            batch_sampler=_Numbered(self, numbers),
            num_workers=max(1, loader.num_workers),
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            # The loader draws a number when it begins, which must not be one of the training's.
            generator=torch.Generator(),
            **options,
        )

    def samples(self, number: int) -> list[tuple[int, int]]:
        """Return the epoch and the index of each sample of a batch."""
        epoch, batch = divmod(number, self._batches)
        order = self._order(epoch)
        first = batch * self.batch_size
        return [(epoch, index) for index in order[first : first + self.batch_size]]

    def _order(self, epoch: int) -> list[int]:
        if not self._is_shuffled:
            return list(range(len(self.dataset)))
        if getattr(self, "_ordered", None) != epoch:
            order = list(range(len(self.dataset)))
            random.Random(self._key.digest() + b"%d" % epoch).shuffle(order)
            self._ordered, self._epoch_order = epoch, order
        return self._epoch_order


class _Numbered:
    """The samples of some batches, for a DataLoader."""

    def __init__(self, shared: SharedLoader, numbers: Any) -> None:
        self._shared, self._numbers = shared, numbers

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return (self._shared.samples(number) for number in self._numbers)


class _Seeded:
    """A data set whose random numbers depend on the group, the epoch and the sample."""

    def __init__(self, dataset: Any, seed: bytes) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: tuple[int, int]) -> Any:
        import torch

        digest = hashlib.blake2b(self._seed + b"%d %d" % sample, digest_size=8).digest()
        random.seed(digest)
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        return self._dataset[sample[1]]


class _Member:
    """This process as a member: its staging, and a thread that prepares batches with the workers of a DataLoader."""

    def __init__(self, shared: SharedLoader, staging: Staging) -> None:
        self.staging = staging
        # The batches that the workers prepare, in the order of their claims.
        self._claimed: deque[int] = deque()
        # A batch that waits behind another one could be prepared by another member meanwhile.
        self._loader: Any = shared.loader_of(self, persistent_workers=True, prefetch_factor=1)
        self._stopped = threading.Event()
        self._fault: BaseException | None = None
        # The workers start here: to fork from another thread could copy a lock that is held.
        iter(self._loader)
        self._thread = threading.Thread(target=self._run, name="gavel-prepare", daemon=True)
        self._thread.start()
        atexit.register(self.leave)

    def __iter__(self) -> Iterator[int]:
        """Claim batches as long as there are any, after the one that is claimed already; without that, none."""
        yield from tuple(self._claimed)
        while self._claimed and not self._stopped.is_set():
            number = self.staging.claim()
            if number is None:
                return
            self._claimed.append(number)
            yield number

    def take(self, number: int) -> bytes | None:
        """Wait for a batch, as `Staging.take`; raise what has stopped the thread."""
        content = self.staging.take(number)
        if content is None and self._fault is not None:
            raise self._fault
        return content

    def leave(self) -> None:
        """End the thread after the batches in progress, and be no member any more."""
        atexit.unregister(self.leave)
        self._stopped.set()
        self.staging.moved.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        # The loader refers to this object. To leave both to the garbage collector would leave the workers running, and
        # it may run in a process forked from this one, which cannot end them.
        self._loader = None
        self.staging.leave()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                number = self.staging.claim()
                if number is None:
                    self.staging.moved.wait(PAUSE_S)
                    self.staging.moved.clear()
                    continue
                self._claimed.append(number)
                for batch in self._loader:
                    self.staging.put(self._claimed[0], _packed(batch))
                    self._claimed.popleft()
        except BaseException as fault:
            # The others go on without this member; the loop raises the error when it arrives here.
            self._fault = fault
            self.staging.resign()
            self.staging.release()


def _packed(batch: Any) -> bytes:
    """Return the bytes of a batch; raise TypeError if the others could not read it."""
    import torch

    file = io.BytesIO()
    torch.save(batch, file)
    content = file.getvalue()
    try:
        _unpacked(content)
    except Exception as fault:
        raise TypeError(
            "shared_prep: batches may have tensors, numbers, texts, lists and dicts; "
            f"{type(batch).__name__} cannot be passed to other jobs: {fault}"
        ) from None
    return content


def _unpacked(content: bytes) -> Any:
    """Return a batch; nothing in its bytes is executed."""
    import torch

    return torch.load(io.BytesIO(content), weights_only=True)


def _name(loader: Any) -> list[str]:
    """Return what tells preparations apart: the data, and the functions that prepare it."""
    data = loader.dataset
    functions = (getattr(data, "_prepare", None), loader.collate_fn)
    names = [f"{getattr(it, '__module__', '')}.{getattr(it, '__qualname__', '')}" for it in functions]
    return [type(data).__qualname__, getattr(data, "_salt", b"").hex(), *names]
