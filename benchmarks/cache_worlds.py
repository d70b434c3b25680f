"""Data sets of jobs on real arenas, and a storage that counts: jobs on one node, and the nodes of a gang.

Of a gang, each node has its folders, its arena and the process that answers for it. Everything but the network between
the nodes is what a job does on several machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from gavel.training import CachedDataset
from gavel.training.data import node_arena, partition, peer_server, peers
from gavel.training.data.arena import size_for
from worker_agent.node.node_cache import make_file
from worker_agent.runs.rendezvous import HeldPorts

PATIENCE_S = 60.0
ITEM_BYTES = 4096
MEMORY = Path("/dev/shm")  # noqa: S108


class Storage:
    """A storage of numbered items of one length, which counts how often each is read."""

    def __init__(self, item_bytes: int) -> None:
        self.item_bytes = item_bytes
        self.reads: Counter[int] = Counter()

    def fetch(self, number: int) -> bytes:
        """Return an item, which begins with its number."""
        self.reads[number] += 1
        return self.item(number)

    def item(self, number: int) -> bytes:
        """Return an item without counting that."""
        return number.to_bytes(8, "little") * (self.item_bytes // 8)


@contextlib.contextmanager
def data_sets(
    items: int, capacity: int, jobs: int, item_bytes: int = ITEM_BYTES
) -> Iterator[tuple[list[CachedDataset], Storage]]:
    """Return the data sets of jobs on one node, whose cache has room for `capacity` items."""
    storage = Storage(item_bytes)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        environ = {"GAVEL_CACHE": folder, "GAVEL_RUN_DIR": folder}
        with mock.patch.dict(os.environ, environ), mock.patch.object(node_arena, "WAIT_S", 0.0):

            def data_set() -> CachedDataset:
                return CachedDataset(range(items), name="items", fetch=storage.fetch, version="1")

            data_set()
            (request,) = Path(folder).glob("cache-*.json")
            key = request.stem.removeprefix("cache-")
            if capacity:
                make_file(Path(folder, f"{key}.arena"), size_for(items, capacity * item_bytes))
            yield [data_set() for _ in range(jobs)], storage


@contextlib.contextmanager
def gang(
    items: int, capacity: int, nodes: int, item_bytes: int
) -> Iterator[tuple[list[CachedDataset], Storage]]:
    """Return a data set on each node, whose cache has room for `capacity` items."""
    storage, ports = Storage(item_bytes), HeldPorts()
    names = [f"n{number}" for number in range(nodes)]
    addresses = [(name, "127.0.0.1", port) for name, port in zip(names, ports.take("1", nodes), strict=True)]
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        mock.patch.object(node_arena, "WAIT_S", 0.0),
        mock.patch.object(partition, "WAIT_S", 0.0),
        # A busy machine must not look like a dead node.
        mock.patch.object(peers, "ANSWER_S", PATIENCE_S),
    ):
        before = len(peer_server._servers)
        try:
            sets: list[CachedDataset] = []
            secret = os.urandom(16).hex()
            for name in names:
                own = Path(folder) / name
                own.mkdir()
                environ = {
                    "GAVEL_CACHE": str(own),
                    "GAVEL_RUN_DIR": str(own),
                    "GAVEL_CACHE_NODES": json.dumps({"own": name, "nodes": addresses}),
                    "GAVEL_CACHE_SECRET": secret,
                }
                with mock.patch.dict(os.environ, environ):
                    sets.append(CachedDataset(range(items), name="items", fetch=storage.fetch, version="1"))
                (request,) = own.glob("cache-*.json")
                key = request.stem.removeprefix("cache-")
                make_file(own / f"{key}.arena", size_for(items, capacity * item_bytes))
            for data in sets:
                if data._partition is not None and not data._partition.wait(PATIENCE_S):
                    raise RuntimeError(f"a node does not answer within {PATIENCE_S:g} s")
            yield sets, storage
        finally:
            for server in peer_server._servers[before:]:
                server.kill()
                server.wait()
            del peer_server._servers[before:]
            ports.close()
