"""`CachedDataset` reads an item from storage once, gives right samples in any process, and works without a cache."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gavel.training.data import cached, node_arena
from gavel.training.data.cached import CachedDataset
from tests.training.leases import ROOT
from worker_agent.node.node_cache import make_file

ITEMS = 60


class Storage:
    """Numbered items, which counts how often each is read."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def fetch(self, number: int) -> bytes:
        """Return an item of some length."""
        self.reads.append(number)
        return b"%d" % number * (number % 7)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with a cache, whose agent has made no arena, and a run directory."""
    for variable, folder in (("GAVEL_CACHE", "cache"), ("GAVEL_RUN_DIR", "run")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.setattr(node_arena, "WAIT_S", 0.0)
    return tmp_path


def make_arena(node: Path, size: int = 1 << 20) -> dict[str, object]:
    """Make the arena that the job asks for, as an agent does; return what it asks for."""
    (path,) = (node / "run").glob("cache-*.json")
    content = json.loads(path.read_text())
    assert path.name == f"cache-{content['key']}.json"
    make_file(node / "cache" / f"{content['key']}.arena", size)
    return content


def numbers(storage: Storage, **more: object) -> CachedDataset:
    """Return a data set of numbered items."""
    return CachedDataset(range(ITEMS), name="numbers", fetch=storage.fetch, version="1", **more)


def test_the_second_job_reads_nothing_from_storage(node: Path) -> None:
    """Two data sets of one name share what they have read; counters tell where samples came from."""
    make_arena_of = numbers(Storage())
    assert make_arena(node)["bytes"] is None
    first, second = Storage(), Storage()
    data = numbers(first)
    assert [data[i] for i in range(ITEMS)] == [Storage().fetch(i) for i in range(ITEMS)]
    assert [data[i] for i in range(ITEMS)] == [make_arena_of.fetch(i) for i in range(ITEMS)]
    assert sorted(first.reads) == list(range(ITEMS))
    other = numbers(second, prepare=len)
    assert [other[i] for i in range(ITEMS)] == [len(Storage().fetch(i)) for i in range(ITEMS)]
    assert second.reads == []
    counts = data.counters.read()
    assert (counts.samples, counts.hits) == (2 * ITEMS, ITEMS)
    assert counts.bytes == 2 * sum(len(Storage().fetch(i)) for i in range(ITEMS))
    assert len(data) == ITEMS


def test_without_a_cache_storage_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside Gavel, and on a node without a cache, every sample comes from storage."""
    monkeypatch.delenv("GAVEL_CACHE", raising=False)
    storage = Storage()
    data = numbers(storage)
    assert data[3] == data[3] == b"333"
    assert storage.reads == [3, 3]
    assert data.counters.read().hits == 0


def test_a_job_reads_storage_until_its_arena_exists(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room the agent leaves an empty file. When it has some later, the job uses it."""
    now_s = 1000.0
    monkeypatch.setattr(node_arena.time, "monotonic", lambda: now_s)
    storage = Storage()
    data = numbers(storage)
    (request,) = (node / "run").glob("cache-*.json")
    (node / "cache" / f"{json.loads(request.read_text())['key']}.arena").touch()
    assert (data[5], data[5]) == (b"55555", b"55555")
    make_arena(node)
    now_s += node_arena.RETRY_S
    assert [data[5] for _ in range(3)] == [b"55555"] * 3
    assert storage.reads == [5, 5, 5]


def test_a_job_waits_for_the_agent(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that asks first uses the arena from its first sample on."""
    monkeypatch.setattr(node_arena, "WAIT_S", 100.0)
    pause = threading.Event()

    def agent() -> None:
        while not list((node / "run").glob("cache-*.json")):
            pause.wait(0.01)
        make_arena(node)

    thread = threading.Thread(target=agent)
    thread.start()
    data = numbers(Storage())
    thread.join()
    assert data[1] == data[1]
    assert data.counters.read().hits == 1


def test_a_probe_waits_for_no_agent(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent looks into the directory of a probe, so each of its runs would wait in vain; it uses what exists."""
    monkeypatch.setattr(node_arena, "WAIT_S", float("inf"))
    monkeypatch.setattr(node_arena.time, "sleep", lambda _: pytest.fail("the probe waits"))
    monkeypatch.setenv("GAVEL_PROBE", "real")
    storage = Storage()
    assert numbers(storage)[5] == b"55555"
    assert list((node / "run").glob("cache-*")) == []
    monkeypatch.delenv("GAVEL_PROBE")
    monkeypatch.setattr(node_arena, "WAIT_S", 0.0)
    job = numbers(storage)
    make_arena(node)
    assert job[5] == b"55555"
    monkeypatch.setenv("GAVEL_PROBE", "real")
    assert numbers(storage)[5] == b"55555"
    assert storage.reads == [5, 5]


def test_data_of_a_known_size_fits(node: Path) -> None:
    """The arena that a data set with a size asks for has room for all of it, and its index."""
    items, length = 500, 700
    words = {"name": "a", "fetch": lambda number: b"%d" % (number % 10) * length, "version": "1"}
    CachedDataset(range(items), size=items * length, **words)
    (path,) = (node / "run").glob("cache-*.json")
    make_arena(node, json.loads(path.read_text())["bytes"])
    data = CachedDataset(range(items), size=items * length, **words)
    for _ in range(2):
        assert all(data[number] == b"%d" % (number % 10) * length for number in range(items))
    assert data.counters.read().hits == items


def test_a_foreign_file_is_no_cache(node: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of something else in the arena's place is reported once; samples come from storage."""
    numbers(Storage())
    key = str(make_arena(node)["key"])
    (node / "cache" / f"{key}.arena").write_bytes(b"something else" * 1000)
    data = numbers(Storage())
    assert (data[5], data[6]) == (b"55555", b"666666")
    assert len([line for line in caplog.messages if "read from storage" in line]) == 1


# -------------------------------------------------------------------------------------------------- fingerprint


def key_of(node: Path, *arguments: object, **words: object) -> str:
    """Return the key of a data set."""
    for path in (node / "run").glob("cache-*.json"):
        path.unlink()
    CachedDataset(*arguments, **words)  # type: ignore[arg-type]
    (path,) = (node / "run").glob("cache-*.json")
    return path.name


def test_changed_data_has_another_arena(node: Path) -> None:
    """The count, the name, the version, the function that reads, and the directory of the files are in the key."""
    words = {"name": "a", "fetch": len, "version": "1"}
    keys = {key_of(node, range(5), **words)}
    for files, change in (
        (range(6), {}),
        (range(5), {"name": "b"}),
        (range(5), {"version": "2"}),
        (range(5), {"fetch": repr}),
    ):
        keys.add(key_of(node, files, **{**words, **change}))
    folder = node / "data"
    folder.mkdir()
    paths = [folder / f"{number}" for number in range(5)]
    for path in paths:
        path.write_bytes(b"x")
    keys.add(before := key_of(node, paths, name="a"))
    assert key_of(node, list(map(str, reversed(paths))), name="a") == before
    (folder / "more").write_bytes(b"y")
    os.utime(folder, (1, 1))
    keys.add(key_of(node, paths, name="a"))
    assert len(keys) == 7


def nested(node: Path) -> list[Path]:
    """Make files in directories of directories, all of an old time, and return their paths."""
    paths = [node / "data" / outer / inner / "file" for outer in "ab" for inner in "cd"]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"old")
    for folder in (node / "data", *(node / "data").rglob("*")):
        os.utime(folder, (1, 1))
    return paths


def test_a_file_replaced_in_a_subdirectory_is_read_anew(node: Path) -> None:
    """The time of the common directory stays, and so does the size of the file; no job receives the old bytes."""
    paths = nested(node)
    CachedDataset(paths, name="a")
    make_arena(node)
    before = CachedDataset(paths, name="a")
    assert [before[1] for _ in range(2)] == [b"old"] * 2
    (node / "new").write_bytes(b"new")
    os.replace(node / "new", paths[1])
    assert (node / "data").stat().st_mtime == 1
    after = CachedDataset(paths, name="a")
    assert [after[i] for i in range(4)] == [b"old", b"new", b"old", b"old"]
    assert before.counters.read().hits == 1


def test_a_replaced_directory_is_another_data_set(node: Path) -> None:
    """A copy of a directory may have its times, so the directories between it and the common one count, too."""
    paths = nested(node)
    before = key_of(node, paths, name="a")
    assert key_of(node, paths, name="a") == before
    copied = node / "copied"
    copied.mkdir()
    (copied / "file").write_bytes(b"new")
    os.utime(copied, (1, 1))
    os.rename(node / "data" / "a" / "c", node / "gone")
    os.rename(copied, node / "data" / "a" / "c")
    assert [(node / "data" / name).stat().st_mtime for name in ("", "a/c")] == [1, 1]
    assert key_of(node, paths, name="a") != before


def test_each_directory_is_looked_at_once_and_only_so_many(
    node: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many files it has; of more than the limit those near the root count, and a warning has the remedy."""
    paths = nested(node) * 50
    looked: list[str] = []
    stat = os.stat

    def counting(path: str) -> os.stat_result:
        looked.append(os.path.relpath(path, node))
        return stat(path)

    # Only for the module: pytest needs `os.stat`, too.
    monkeypatch.setattr(cached, "os", SimpleNamespace(**{**vars(os), "stat": counting}))
    cached._directories(paths)
    assert looked == ["data", "data/a", "data/b", "data/a/c", "data/a/d", "data/b/c", "data/b/d"]
    assert caplog.messages == []
    monkeypatch.setattr(cached, "DIRECTORIES_MAX", 3)
    looked.clear()
    cached._directories(paths)
    assert looked == ["data", "data/a", "data/b"]
    (message,) = caplog.messages
    assert "version=" in message


def test_a_file_alone_may_change_in_place(node: Path) -> None:
    """Its own size and time count, and not what is written beside it."""
    path = node / "file"
    path.write_bytes(b"x")
    before = key_of(node, [path], name="a")
    (node / "log.txt").write_bytes(b"a log of the job")
    assert key_of(node, [path], name="a") == before
    path.write_bytes(b"xx")
    assert key_of(node, [path], name="a") != before


def test_the_order_of_the_files_does_not_matter(node: Path) -> None:
    """Items are known by what they are, not by their index, so jobs may list them in any order."""
    folder = node / "data"
    folder.mkdir()
    paths = [folder / f"{number}" for number in range(9)]
    for number, path in enumerate(paths):
        path.write_bytes(b"%d" % number)
    CachedDataset(paths, name="a")
    make_arena(node)
    data, reverse = CachedDataset(paths, name="a"), CachedDataset(paths[::-1], name="a")
    assert [data[i] for i in range(9)] == [b"%d" % i for i in range(9)]
    assert [reverse[i] for i in range(9)] == [b"%d" % i for i in reversed(range(9))]
    assert reverse.counters.read().hits == 9


def test_a_number_and_its_text_are_different_items(node: Path) -> None:
    """The key of an item has its type."""
    files = [1, "1"]
    CachedDataset(files, name="a", fetch=lambda item: repr(item).encode(), version="1")
    make_arena(node)
    data = CachedDataset(files, name="a", fetch=lambda item: repr(item).encode(), version="1")
    assert [data[0], data[1]] * 2 == [data[i] for i in (0, 1, 0, 1)] == [b"1", b"'1'"] * 2


# ------------------------------------------------------------------------------------------------ other processes

LOADERS = """
import multiprocessing, sys
from pathlib import Path
from torch.utils.data import DataLoader
from gavel.training import CachedDataset

def fetch(number):
    with open("reads", "a") as file:
        file.write("x")
    return b"%d" % number * 50

if __name__ == "__main__":
    data = CachedDataset(range(40), name="numbers", fetch=fetch, version="1")
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1], collate_fn=list)
    for _ in range(3):
        assert [sample for batch in loader for sample in batch] == [b"%d" % number * 50 for number in range(40)]
    counts = data.counters.read()
    print(int(counts.samples), int(counts.hits), len(Path("reads").read_text()))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_share_the_arena(node: Path, method: str) -> None:
    """Workers, forked or spawned, store items for each other and for later epochs, and count together."""
    pytest.importorskip("torch", reason="torch is not installed")
    (node / "job.py").write_text(LOADERS)
    environ = {name: os.environ[name] for name in ("GAVEL_CACHE", "GAVEL_RUN_DIR", "PATH")}
    words = [sys.executable, str(node / "job.py"), method]
    # The agent answers while the job waits.
    with subprocess.Popen(
        words, cwd=node, env={**environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as job:
        pause = threading.Event()
        while not list((node / "run").glob("cache-*.json")):
            assert job.poll() is None
            pause.wait(0.01)
        make_arena(node)
        printed, _ = job.communicate()
    assert printed == "120 80 40\n"


def test_a_pickled_data_set_opens_the_arena_again(node: Path) -> None:
    """A copy, as a spawned process gets it, has no mapping, and finds what the first one has stored."""
    words = {"name": "storage", "fetch": bytes, "version": "1"}
    CachedDataset(range(9), **words)
    make_arena(node)
    data = CachedDataset(range(9), **words)
    assert data[7] == bytes(7)
    other = copy.deepcopy(data)
    assert other[7] == bytes(7)
    assert (data.counters.read().samples, data.counters.read().hits) == (2, 1)


# ----------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"name": ""}, ValueError, "name is ''"),
        ({"name": "x" * 129}, ValueError, "name is"),
        ({"name": 7}, ValueError, "name is 7"),
        ({"name": "a", "fetch": None}, TypeError, "fetch is None"),
        ({"name": "a", "prepare": "resize"}, TypeError, "prepare is 'resize'"),
        ({"name": "a", "size": 0}, ValueError, "size is 0"),
        ({"name": "a", "size": "64GB"}, ValueError, "size is '64GB'"),
        ({"name": "a"}, ValueError, "version is missing"),
    ],
)
def test_bad_words_are_refused(words: dict[str, object], error: type[Exception], text: str) -> None:
    """The message names the word and its value."""
    with pytest.raises(error, match=text):
        CachedDataset([1, 2], **words)  # type: ignore[arg-type]


def test_files_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    """Texts that are no paths need a version."""
    with pytest.raises(ValueError, match="version='2026-11'"):
        CachedDataset([tmp_path / "no" / "a", tmp_path / "no" / "b"], name="a")


def test_items_and_bytes_of_other_types_are_refused(node: Path) -> None:
    """What tells items apart must be known, and only bytes can be kept."""
    files = [("a", 1), 2]
    CachedDataset(files, name="a", fetch=lambda item: "text", version="1")  # type: ignore[arg-type,return-value]
    make_arena(node)
    data = CachedDataset(files, name="a", fetch=lambda item: "text", version="1")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"item \('a', 1\)"):
        data[0]
    with pytest.raises(TypeError, match="fetch returned str for 2"):
        data[1]
