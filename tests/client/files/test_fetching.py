"""A fetch: which files it asks for, where they go, and what it refuses from a scheduler that it does not trust."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.client import AsyncClient, Client, Invalid, JobSpec, ServerError
from gavel.client.files.fetching import Fetching, Listing
from gavel.client.files.local import PART, LocalFolder
from gavel.client.results.files import FileEntry, FileList, FilePiece
from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1.limits import FETCHED_FILES_MAX, is_plain_path, path_fault
from scheduler.live.access.status import UNAVAILABLE, CallFailed
from tests.support.live_thread import LiveThread

AT_NS = 1_700_000_000_000_000_000


def entry(path: str, size_bytes: int = 3, modified_ns: int = AT_NS) -> FileEntry:
    """Return a file."""
    return FileEntry(path, size_bytes, modified_ns, False)


def listed(node: str, *files: FileEntry, **more: Any) -> FileList:
    """Return the files of a node."""
    fields = {"places": None, "notices": (), "unmatched": (), "missing": "", **more}
    return FileList(node, 1, files=files, **fields)


def piece(index: int, data: bytes = b"", *, offset: int = 0, **more: Any) -> FilePiece:
    """Return a piece of a file."""
    return FilePiece(
        index, **{"file": None, "offset": offset, "data": data, "end": False, "problem": "", **more}
    )


def whole(fetching: Fetching, data: bytes = b"abc") -> None:
    """Answer the next call with files of this content."""
    files = fetching.call().request.files
    for index, file in enumerate(files):
        sent = FileEntry(file.path, len(data), file.modified_ns, False)
        fetching.take(piece(index, file=sent, offset=file.offset))
        fetching.take(piece(index, data[file.offset :], offset=file.offset))
        fetching.take(piece(index, end=True))
    fetching.end_of_call()


def test_files_go_to_their_paths_and_are_not_fetched_twice(tmp_path: Path) -> None:
    """A second fetch asks for nothing."""
    folder, lists = LocalFolder(tmp_path), [listed("n1", entry("a"), entry("b/c"))]
    with Fetching("1", lists, folder) as fetching:
        while not fetching.is_over:
            whole(fetching)
    assert fetching.result.fetched == ("a", "b/c")
    assert (tmp_path / "b/c").read_bytes() == b"abc"
    again = Fetching("1", lists, folder)
    assert (again.is_over, again.result.present) == (True, ("a", "b/c"))


def test_an_interrupted_file_continues_where_it_was_left(tmp_path: Path) -> None:
    """Within a fetch after a lost connection, and in the next fetch."""
    lists = [listed("n1", entry("a"))]
    with Fetching("1", lists, LocalFolder(tmp_path)) as fetching:
        fetching.call()
        fetching.take(piece(0, file=entry("a")))
        fetching.take(piece(0, b"a"))
        (wanted,) = fetching.call().request.files
        assert (wanted.offset, wanted.size_bytes, wanted.modified_ns) == (1, 3, AT_NS)
        fetching.take(piece(0, file=entry("a"), offset=1))
        fetching.take(piece(0, b"b", offset=1))
    assert [path.name for path in tmp_path.iterdir()] == [f"a{PART}"]
    with Fetching("1", lists, LocalFolder(tmp_path)) as fetching:
        whole(fetching)
    assert ((tmp_path / "a").read_bytes(), fetching.result.size_bytes) == (b"abc", 1)


def test_nodes_with_different_files_get_directories_of_their_own(tmp_path: Path) -> None:
    """If all files of one path are the same, as on shared storage, each is fetched once and lies at its path."""
    same = [listed("n1", entry("a"), entry("b")), listed("n2", entry("a"), entry("c"))]
    with Fetching("1", same, LocalFolder(tmp_path / "shared")) as fetching:
        while not fetching.is_over:
            whole(fetching)
    assert fetching.result.fetched == ("a", "b", "c")
    different = [listed("n1", entry("a"), entry("b")), listed("n2", entry("a", modified_ns=AT_NS + 1))]
    with Fetching("1", different, LocalFolder(tmp_path / "apart")) as fetching:
        while not fetching.is_over:
            whole(fetching)
    assert fetching.result.fetched == ("n1/a", "n1/b", "n2/a")


def test_a_file_that_differs_is_kept_unless_forced(tmp_path: Path) -> None:
    """It is reported as a problem, and the other files are fetched."""
    (tmp_path / "a").write_text("mine")
    lists = [listed("n1", entry("a"), entry("b"))]
    with Fetching("1", lists, LocalFolder(tmp_path)) as fetching:
        whole(fetching)
    assert (fetching.result.fetched, len(fetching.result.problems)) == (("b",), 1)
    assert (tmp_path / "a").read_text() == "mine"
    with Fetching("1", lists, LocalFolder(tmp_path), force=True) as fetching:
        whole(fetching)
    assert ((tmp_path / "a").read_text(), fetching.result.problems) == ("abc", ())


def test_missing_nodes_and_files_are_problems(tmp_path: Path) -> None:
    """So is a path that no node has. A pattern that matches nothing is only noted, unless there is nothing at all."""
    lists = [
        listed("n1", entry("a"), unmatched=("b", "c", "*.pt")),
        listed("n2", unmatched=("c", "*.pt"), notices=("pipe is a named pipe",)),
        listed("n3", missing="cannot be reached"),
    ]
    result = Fetching("1", lists, LocalFolder(tmp_path)).result
    assert result.problems == ("n3 cannot be reached: its files are missing", "there is no file 'c'")
    assert result.notices == ("no file matches '*.pt'", "n2: pipe is a named pipe: left out")
    nothing = Fetching("1", [listed("n1", unmatched=("*.pt",))], LocalFolder(tmp_path)).result
    assert nothing.problems == ("there is no file '*.pt'",)
    unsaved = Fetching("1", [listed("n1", unmatched=(".",))], LocalFolder(tmp_path), checkpoints=True).result
    assert unsaved.problems == ("there are no checkpoints",)


def test_a_file_that_shrank_stays_a_part_and_one_that_grew_is_noted(tmp_path: Path) -> None:
    """An incomplete file never gets its name."""
    with Fetching("1", [listed("n1", entry("a"), entry("b"), entry("c"))], LocalFolder(tmp_path)) as fetching:
        fetching.call()
        fetching.take(piece(0, file=entry("a")))
        fetching.take(piece(0, b"ab", end=True, problem="changed while it was read"))
        fetching.take(piece(1, file=entry("b")))
        fetching.take(piece(1, b"abc", end=True, problem="changed while it was read"))
        fetching.take(piece(2, end=True, problem="is a named pipe"))
    result = fetching.result
    assert (result.fetched, len(result.problems), len(result.notices)) == (("b",), 2, 1)
    assert not (tmp_path / "a").exists()


def test_many_files_take_several_calls_of_one_node_each(tmp_path: Path) -> None:
    """A call has a limited number of files, all of one node."""
    many = [entry(str(number)) for number in range(FETCHED_FILES_MAX + 1)]
    with Fetching("1", [listed("n1", *many), listed("n2", entry("x"))], LocalFolder(tmp_path)) as fetching:
        sizes = []
        while not fetching.is_over:
            request = fetching.call().request
            sizes.append((request.node, len(request.files)))
            for index in range(len(request.files)):
                fetching.take(piece(index, end=True, problem="is gone"))
    assert sizes == [("n1", FETCHED_FILES_MAX), ("n1", 1), ("n2", 1)]


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "", "a//b", "./a", "a\0b"])
def test_paths_that_lead_out_are_never_written(tmp_path: Path, path: str) -> None:
    """A hostile scheduler can name any path, and any node; nothing is fetched for it."""
    inner = tmp_path / "here"
    for lists in ([listed("n1", entry(path))], [listed("..", entry("a")), listed("/n", entry("a", 4))]):
        fetching = Fetching("1", lists, LocalFolder(inner))
        assert (fetching.is_over, bool(fetching.result.problems)) == (True, True)
    assert list(tmp_path.iterdir()) == []


@given(st.text(alphabet="./a\0", max_size=12))
def test_a_plain_path_stays_below_its_directory(path: str) -> None:
    """The check agrees with what a path means to the system."""
    parts = path.split("/")
    assert is_plain_path(path) == (bool(path) and "\0" not in path and not {"", ".", ".."} & set(parts))
    if not path_fault(path):
        depth = 0
        for part in parts:
            depth += -1 if part == ".." else part not in ("", ".")
            assert depth >= 0


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(1, file=entry("a"))],
        [piece(0, file=entry("a"), offset=2)],
        [piece(0, file=entry("a")), piece(0, b"abcd")],
        [piece(0, file=entry("a")), piece(0, b"b", offset=1)],
        [piece(0, file=entry("a")), piece(0, file=entry("a"))],
        [piece(0, end=True, problem="gone"), piece(1, b"a")],
    ],
)
def test_pieces_that_do_not_fit_are_refused(tmp_path: Path, pieces: list[FilePiece]) -> None:
    """No file gets more than its size, or gaps, or the content of another file."""
    with Fetching("1", [listed("n1", entry("a"))], LocalFolder(tmp_path)) as fetching:
        fetching.call()
        for each in pieces[:-1]:
            fetching.take(each)
        with pytest.raises(ServerError):
            fetching.take(pieces[-1])
    assert not (tmp_path / "a").exists()


def test_a_call_that_ends_early_is_an_error(tmp_path: Path) -> None:
    """Otherwise a fetch would repeat it for ever."""
    with Fetching("1", [listed("n1", entry("a"))], LocalFolder(tmp_path)) as fetching:
        fetching.call()
        with pytest.raises(ServerError):
            fetching.end_of_call()


def test_a_path_that_leads_out_is_refused_before_the_call() -> None:
    """The error names the argument; a single path may be given as a text."""
    with pytest.raises(Invalid) as error:
        Listing("1", ["a", "../b"], 0, checkpoints=False)
    assert error.value.field == "paths"
    assert list(Listing("1", "a", 0, checkpoints=False).call().request.paths) == ["a"]


@pytest.mark.parametrize("blocking", [True, False])
def test_both_clients_continue_after_a_lost_link(live: LiveThread, tmp_path: Path, blocking: bool) -> None:
    """The second call asks for the rest of the file."""
    nodes = live.daemon.nodes
    with Client(live.address) as client:
        (job,) = client.submit(JobSpec(command=("true",)))
    file = pb.FileEntry(path="a", size_bytes=3, modified_ns=AT_NS)
    nodes.lists = [pb.FileList(node="n1", attempt=1, files=[file])]
    nodes.pieces = [
        [
            pb.FilePiece(file=file),
            pb.FilePiece(data=b"a"),
            CallFailed(UNAVAILABLE, "n1 broke off", retry_s=0.01),
        ],
        [pb.FilePiece(file=file, offset=1), pb.FilePiece(data=b"bc", offset=1), pb.FilePiece(end=True)],
    ]

    async def fetch() -> Any:
        async with AsyncClient(live.address) as client:
            return await client.fetch(job, to=tmp_path / "here")

    if blocking:
        with Client(live.address) as client:
            fetched = client.fetch(job, to=tmp_path / "here")
    else:
        fetched = asyncio.run(fetch())
    assert (fetched.fetched, (tmp_path / "here/a").read_bytes()) == (("a",), b"abc")
    assert [request.files[0].offset for request in nodes.fetches] == [0, 1]
