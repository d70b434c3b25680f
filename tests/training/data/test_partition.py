"""The nodes of a gang keep a data set together: each item is read from storage once, and wrong bytes never come."""

from __future__ import annotations

import copy
import multiprocessing
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.training.data import partition, peer_server, peers
from gavel.training.data.arena import hash_of
from gavel.training.data.cached import CachedDataset
from gavel.training.data.partition import OWNERS_MAX, owners
from gavel.training.environment import cache_nodes_of
from gavel.training.errors import EnvironmentFault
from tests.training.data.gang import LENGTH, Gang

ITEMS = 120
Starts = Callable[[int], Gang]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    """A function that starts a gang of so many nodes."""
    gangs: list[Gang] = []

    def start_gang(count: int) -> Gang:
        gangs.append(Gang(tmp_path, monkeypatch, count))
        return gangs[-1]

    yield start_gang
    for gang in gangs:
        gang.close()


# ------------------------------------------------------------------------------------------------------- owners

KEYS = st.binary(min_size=16, max_size=16)
NODES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True)


@given(KEYS, NODES, st.randoms(use_true_random=False))
def test_a_node_that_goes_changes_only_its_own_items(
    key: bytes, nodes: list[str], chance: random.Random
) -> None:
    """Of the others, the order stays; so what comes back by a node that joins is only what it owns."""
    gone = chance.choice(nodes)
    left = [node for node in nodes if node != gone]
    chance.shuffle(left)
    before, after = owners(key, nodes), owners(key, left)
    kept = [node for node in before if node != gone]
    assert after[: len(kept)] == kept
    assert len(after) == min(OWNERS_MAX, len(left))
    if before[0] != gone:
        assert after[0] == before[0]


def test_nodes_own_equal_shares_and_a_new_one_takes_its_share_only() -> None:
    """Of 20,000 items each of four nodes owns a quarter; with a fifth, a fifth of all items moves, all to it."""
    nodes = ["n1", "n2", "n3", "n4"]
    keys = [hash_of(b"%d" % number) for number in range(20_000)]
    before = [owners(key, nodes)[0] for key in keys]
    after = [owners(key, [*nodes, "n5"])[0] for key in keys]
    assert all(0.24 < count / len(keys) < 0.26 for count in Counter(before).values())
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"n5"}
    assert 0.19 < len(moved) / len(keys) < 0.21


# ---------------------------------------------------------------------------------------------------- no faults


@pytest.mark.parametrize("count", [2, 3])
def test_nodes_with_room_for_their_share_read_storage_once(start: Starts, count: int) -> None:
    """Two nodes with half of the data each, or three with a third, read nothing from storage after the first epoch."""
    gang = start(count)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH // count)
    assert gang.epoch(sets, 1) == ITEMS
    assert [gang.epoch(sets, seed) for seed in (2, 3)] == [0, 0]
    assert set(gang.storage.reads.values()) == {1}
    counts = [data.counters.read() for data in sets]
    assert sum(count.hits for count in counts) == 2 * ITEMS
    assert all(0 < count.remote < count.hits for count in counts)


def test_a_node_without_room_asks_the_others(start: Starts) -> None:
    """A node that has no arena keeps nothing, and finds what another one keeps."""
    gang = start(2)
    first, second = gang.data_set("n1", ITEMS, None), gang.data_set("n2", ITEMS, ITEMS * LENGTH)
    assert first._partition is not None
    assert second._partition is not None
    assert first._partition.wait(60)
    assert second._partition.wait(60)
    assert gang.epoch([first], 1) == ITEMS
    assert gang.epoch([second], 2) == 0
    assert gang.epoch([first], 3) == 0
    counts = first.counters.read()
    assert (counts.hits, counts.remote) == (ITEMS, ITEMS)


def test_full_nodes_keep_what_they_have(start: Starts) -> None:
    """With room for half of the data on all nodes together, half of each epoch comes from storage, exactly."""
    gang = start(2)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH // 4)
    assert [gang.epoch(sets, seed) for seed in (1, 2, 3)] == [ITEMS, ITEMS // 2, ITEMS // 2]


def test_an_item_that_fits_in_no_arena_comes_from_storage(start: Starts) -> None:
    """It is read each time, and the others are still kept."""
    gang = start(2)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    long = 10 * ITEMS * LENGTH
    gang.storage.item = lambda number: b"x" * (long if number == 7 else 5)  # type: ignore[method-assign]
    assert [gang.epoch(sets, seed) for seed in (1, 2, 3)] == [ITEMS, 1, 1]
    assert gang.storage.reads[7] == 3


def test_an_item_too_long_for_a_message_is_kept_where_it_was_read(start: Starts) -> None:
    """Each node reads it from storage once."""
    gang = start(2)
    gang.storage.item_bytes = peers.ITEM_BYTES_MAX + 8
    sets = gang.data_sets(1, gang.storage.item_bytes)
    assert [gang.epoch([data], 1) for data in sets * 2] == [1, 1, 0, 0]
    assert [data.counters.read().remote for data in sets] == [0, 0]


def test_forks_and_copies_have_their_own_connections(start: Starts) -> None:
    """Workers of a loader ask at the same time as the process from which they were forked."""
    gang = start(2)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    gang.epoch(sets, 1)

    def read_all() -> None:
        reads = gang.epoch([sets[0]], os.getpid())
        os._exit(0 if reads == 0 else 1)

    workers = [multiprocessing.get_context("fork").Process(target=read_all) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert gang.epoch([sets[0]], 2) == 0
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert gang.epoch([sets[0]], 3) == 0
    copied = copy.deepcopy(sets[0]._partition)
    assert copied is not None
    assert copied.wait(60)


def test_one_process_of_a_node_answers(start: Starts) -> None:
    """Further ranks, and further data sets, use the process that is there; it ends with the one that started it."""
    gang = start(2)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    again = gang.data_set("n1", ITEMS, None)
    assert len(gang.servers) == 2
    gang.epoch(sets, 1)
    assert gang.epoch([again], 2) == 0
    server = gang.servers["n1"]
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(60) == 0


def test_a_job_on_one_node_has_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started and nothing is connected."""
    monkeypatch.delenv("GAVEL_CACHE_NODES", raising=False)
    monkeypatch.setattr(peer_server, "start", lambda nodes: pytest.fail("a process was started"))
    monkeypatch.setattr(partition, "Peer", lambda *words: pytest.fail("a node was asked"))
    data = CachedDataset(range(5), name="items", fetch=bytes, version="1")
    assert (data[3], data._partition) == (bytes(3), None)


# ------------------------------------------------------------------------------------------------------- faults


def test_a_node_that_is_killed_costs_reads_of_storage_only(
    start: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of an epoch its process dies: the items of the dead node come from storage, the others do not."""
    gang = start(2)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    gang.epoch(sets, 1)
    owned = [
        number
        for number in range(ITEMS)
        if owners(hash_of(sets[0]._salt + b"number %d" % number), gang.names)[0] == "n2"
    ]
    for number in range(ITEMS // 2):
        assert sets[0][number] == gang.storage.item(number)
    assert gang.storage.reads.total() == ITEMS
    gang.stop("n2")
    for number in range(ITEMS // 2, ITEMS):
        assert sets[0][number] == gang.storage.item(number)
    lost = [number for number in owned if number >= ITEMS // 2]
    assert gang.storage.reads.total() - ITEMS == len(lost) > 0
    assert len([line for line in caplog.messages if "node n2 does not answer" in line]) == 1


def test_a_node_that_is_back_is_asked_again_after_a_while(
    start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 10 s the node is left alone; then its items come from it again."""
    gang = start(2)
    sets = gang.data_sets(ITEMS, ITEMS * LENGTH)
    gang.epoch(sets, 1)
    now_s = 1000.0
    monkeypatch.setattr(peers.time, "monotonic", lambda: now_s)
    gang.stop("n2")
    lost = gang.epoch([sets[0]], 2)
    assert lost > 0
    now_s += peers.ALONE_S - 0.1
    again = gang.data_set("n2", ITEMS, None)
    assert again._partition is not None
    assert "n2" in gang.servers
    assert gang.epoch([sets[0]], 3) == lost
    now_s += 0.2
    assert gang.epoch([sets[0]], 4) == 0


@pytest.mark.parametrize(
    "text",
    ["x", "[]", "{}", '{"own": "n1", "nodes": [["n1", "h"]]}', '{"own": "n1", "nodes": [["n1", "h", "p"]]}'],
)
def test_a_bad_environment_is_refused(text: str) -> None:
    """The message names the variable and its value."""
    with pytest.raises(EnvironmentFault, match="GAVEL_CACHE_NODES"):
        cache_nodes_of({"GAVEL_CACHE_NODES": text, "GAVEL_CACHE_SECRET": "00"})
    with pytest.raises(EnvironmentFault, match="GAVEL_CACHE_SECRET"):
        cache_nodes_of({"GAVEL_CACHE_NODES": '{"own": "n1", "nodes": []}', "GAVEL_CACHE_SECRET": "no"})
    assert cache_nodes_of({}) is None


def test_a_machine_without_processes_reads_on(start: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process that answers cannot be started, this node's items are kept for itself, and others read storage."""

    def fail(*arguments: object, **words: object) -> None:
        raise OSError("no more processes")

    gang = start(2)
    monkeypatch.setattr(subprocess, "Popen", fail)
    sets = [gang.data_set(name, ITEMS, ITEMS * LENGTH) for name in gang.names]
    assert gang.servers == {}
    assert gang.epoch(sets, 1) == ITEMS
    assert 0 < gang.epoch(sets, 2) < ITEMS
