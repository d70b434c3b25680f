"""Files are matches and opened below a directory, whatever its owner puts there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.gavel.v1.limits import PATH_CHARS_MAX
from worker_agent.files.tree import DEPTH_MAX, LeftOut, Search, open_below


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory beside a secret; the files in it have their own paths as content."""
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    for path in ("a.txt", "b.pt", ".hidden", "out/c.pt", "out/deep/d.pt", "out/.cache/e", "out/deep/f.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def matches(root: Path, *patterns: str) -> tuple[list[str], Search]:
    """Return the paths that match, and the search, which has the rest."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        search = Search(fd)
        return [file.path for file in search.find(patterns)], search
    finally:
        os.close(fd)


def content(root: Path, path: str) -> str:
    """Return the content of a file that is opened below the directory."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.fdopen(open_below(fd, path)) as file:
            return file.read()
    finally:
        os.close(fd)


ALL = [".hidden", "a.txt", "b.pt", "out/.cache/e", "out/c.pt", "out/deep/d.pt", "out/deep/f.txt"]


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        (["."], ALL),
        (["**"], ALL),
        (["a.txt", "*.txt"], ["a.txt"]),
        (["*.pt"], ["b.pt"]),
        (["**/*.pt"], ["b.pt", "out/c.pt", "out/deep/d.pt"]),
        (["**/**/d.pt"], ["out/deep/d.pt"]),
        (["out"], ["out/.cache/e", "out/c.pt", "out/deep/d.pt", "out/deep/f.txt"]),
        (["./out//deep/"], ["out/deep/d.pt", "out/deep/f.txt"]),
        (["out/*"], ["out/c.pt", "out/deep/d.pt", "out/deep/f.txt"]),
        (["out/.c*"], ["out/.cache/e"]),
        (["out/[cd].pt"], ["out/c.pt"]),
    ],
)
def test_patterns_match_as_in_a_shell_and_directories_as_a_whole(
    tree: Path, patterns: list[str], paths: list[str]
) -> None:
    """`*` leaves out names that begin with a dot; a directory that matches comes with everything in it."""
    assert matches(tree, *patterns)[0] == paths


def test_patterns_without_a_match_are_known(tree: Path) -> None:
    """A pattern counts as matched although an earlier one has matched its files already."""
    _, search = matches(tree, "a.txt", "*.txt", "a.txt/b", "none", "x*")
    assert search.unmatched == ["a.txt/b", "none", "x*"]


def test_links_are_followed_only_within_the_directory(tree: Path) -> None:
    """A link to a file below the directory has that file's content; every other link is left out with the reason."""
    (tree / "latest").symlink_to("out/deep/d.pt")
    (tree / "out/up").symlink_to("../a.txt")
    for name, target in {
        "absolute": "/etc/passwd",
        "out-of-it": "../secret",
        "hidden-way-out": "out/../../secret",
        "loop": "loop",
        "dangling": "nowhere",
        "folder": "out",
    }.items():
        (tree / name).symlink_to(target)
    paths, search = matches(tree, "*", "out/up")
    assert [path for path in paths if (tree / path).is_symlink()] == ["latest", "out/up"]
    assert [line.split()[0] for line in search.notices] == sorted(
        ["absolute", "dangling", "folder", "hidden-way-out", "loop", "out-of-it"]
    )
    assert (content(tree, "latest"), content(tree, "out/up")) == ("out/deep/d.pt", "a.txt")


def test_what_is_no_file_is_left_out_and_never_waited_for(tree: Path) -> None:
    """Pipes, sockets and names that are no text are reported; opening a pipe fails at once."""
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "socket"))
    os.close(os.open(os.fsencode(tree) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    paths, search = matches(tree, ".")
    assert paths == ALL
    assert len(search.notices) == 3
    for path in ("pipe", "out/../../secret", "a.txt/b"):
        with pytest.raises(LeftOut):
            content(tree, path)


def test_a_directory_that_became_a_link_is_not_entered(tree: Path) -> None:
    """If the job replaces a directory by a link after it was listed, nothing is opened through it."""
    (tree / "swapped").symlink_to(tree.parent)
    with pytest.raises(LeftOut):
        content(tree, "swapped/secret")
    assert matches(tree, "swapped/secret")[0] == []


def test_very_deep_directories_are_cut_off(tmp_path: Path) -> None:
    """The search ends at a depth, so no job can exhaust the descriptors of the process."""
    path = tmp_path / "/".join("d" * (DEPTH_MAX + 5))
    path.mkdir(parents=True)
    (path / "file").touch()
    paths, search = matches(tmp_path, ".")
    assert (paths, len(search.notices)) == ([], 1)


def test_a_pattern_that_matches_in_countless_ways_is_answered(tmp_path: Path) -> None:
    """Each directory is searched once for each part of the pattern."""
    folder = tmp_path.joinpath(*["a"] * 60)
    folder.mkdir(parents=True)
    (folder / "x").touch()
    paths, search = matches(tmp_path, "**/a/" * 30 + "x", "**/a/" * 30 + "y")
    assert paths == ["a/" * 60 + "x"]
    assert search.unmatched == ["**/a/" * 30 + "y"]


def test_paths_that_no_message_can_carry_are_left_out(tmp_path: Path) -> None:
    """The same limit holds for the paths that users ask for."""
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(PATH_CHARS_MAX // 200 + 1):
        os.mkdir("d" * 200, dir_fd=folder)
        os.close(os.open("x", os.O_CREAT, dir_fd=folder))
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("x", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    paths, search = matches(tmp_path, ".")
    assert len(paths) == PATH_CHARS_MAX // 200 + 1
    assert len(search.notices) == 1


@given(
    target=st.lists(st.sampled_from(["..", ".", "out", "deep", "link", "", "c.pt", "secret"]), max_size=6),
    path=st.lists(
        st.sampled_from(["..", ".", "out", "deep", "link", "secret", "a.txt"]), min_size=1, max_size=6
    ),
)
def test_no_path_and_no_link_leads_out(
    tmp_path_factory: pytest.TempPathFactory, target: list[str], path: list[str]
) -> None:
    """Whatever a path and a link on it are, what is opened lies below the directory, or nothing is opened."""
    outer = tmp_path_factory.mktemp("outer")
    (outer / "secret").write_text("secret")
    root = outer / "root"
    (root / "out/deep").mkdir(parents=True)
    for name in ("a.txt", "out/c.pt"):
        (root / name).write_text("inside")
    if text := "/".join(target):
        (root / "link").symlink_to(text)
        (root / "out/link").symlink_to(text)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        opened = open_below(fd, "/".join(path))
    except (LeftOut, OSError):
        return
    finally:
        os.close(fd)
    where = Path(os.readlink(f"/proc/self/fd/{opened}"))
    os.close(opened)
    assert where == root or root in where.parents
