"""The nodes of a gang in one process: each has its folders, its data set, and its own process that answers for it."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from benchmarks.cache_worlds import Storage
from gavel.training.data import node_arena, partition, peer_server, peers
from gavel.training.data.arena import size_for
from gavel.training.data.cached import CachedDataset
from worker_agent.node.node_cache import make_file
from worker_agent.runs.rendezvous import HeldPorts

SECRET = "5a" * 16
# A multiple of 8.
LENGTH = 1000
# So long that a busy machine does not look like a dead node.
PATIENCE_S = 120.0


class Gang:
    """Nodes n1, n2, … that keep a data set together."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.folder, self._patch = folder, monkeypatch
        self._ports = HeldPorts()
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self.ports = dict(zip(self.names, self._ports.take("1", count), strict=True))
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.storage = Storage(LENGTH)
        monkeypatch.setattr(node_arena, "WAIT_S", 0.0)
        monkeypatch.setattr(partition, "WAIT_S", 0.0)
        monkeypatch.setattr(peers, "ANSWER_S", PATIENCE_S)

    def enter(self, name: str) -> None:
        """Set the environment of a rank on a node."""
        nodes = [(other, "127.0.0.1", port) for other, port in self.ports.items()]
        self._patch.setenv("GAVEL_CACHE_NODES", json.dumps({"own": name, "nodes": nodes}))
        self._patch.setenv("GAVEL_CACHE_SECRET", SECRET)
        for variable, folder in (("GAVEL_CACHE", "cache"), ("GAVEL_RUN_DIR", "run")):
            path = self.folder / name / folder
            path.mkdir(parents=True, exist_ok=True)
            self._patch.setenv(variable, str(path))

    def data_set(self, name: str, items: int, room: int | None) -> CachedDataset:
        """Return the data set of a process on a node, whose arena has room for so many bytes; None: no arena."""
        self.enter(name)
        before = len(peer_server._servers)
        data = CachedDataset(range(items), name="items", fetch=self.storage.fetch, version="1")
        if len(peer_server._servers) > before:
            self.servers[name] = peer_server._servers[-1]
        (request,) = (self.folder / name / "run").glob("cache-*.json")
        path = self.folder / name / "cache" / f"{request.stem.removeprefix('cache-')}.arena"
        if room is not None and not path.exists():
            make_file(path, size_for(items, room))
        return data

    def data_sets(self, items: int, room: int | None) -> list[CachedDataset]:
        """Return a data set on each node, when all nodes answer."""
        sets = [self.data_set(name, items, room) for name in self.names]
        for data in sets:
            assert data._partition is not None
            assert data._partition.wait(PATIENCE_S)
        return sets

    def epoch(self, sets: list[CachedDataset], seed: int) -> int:
        """Read each item on one node, by chance; check it; return how many were read from storage."""
        before = self.storage.reads.total()
        order = random.Random(seed).sample(range(len(sets[0])), len(sets[0]))
        for index, number in enumerate(order):
            assert sets[index % len(sets)][number] == self.storage.item(number)
        return self.storage.reads.total() - before

    def stop(self, name: str) -> None:
        """Kill the process that answers for a node."""
        server = self.servers.pop(name)
        server.kill()
        server.wait()
        assert server.stdin is not None
        server.stdin.close()
        peer_server._servers.remove(server)

    def close(self) -> None:
        """End all processes."""
        for name in list(self.servers):
            self.stop(name)
        self._ports.close()
