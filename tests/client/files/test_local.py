"""The local directory of a fetch: nothing is written outside it, through a link, or over something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gavel.client.files.local import PART, CannotPlace, LocalFolder
from gavel.client.results.files import FileEntry

AT_NS = 1_700_000_000_123_456_789
ENTRY = FileEntry("a/b", 6, AT_NS, False)


def write(folder: LocalFolder, path: str, data: bytes, *, complete: bool = True, offset: int = 0) -> None:
    """Write a file, or a part of one."""
    part = folder.open_part(path, ENTRY, offset)
    part.write(data)
    part.close(complete=complete)


def test_a_file_gets_its_name_and_time_when_it_is_complete(tmp_path: Path) -> None:
    """Until then it has the name of a part; the rest is appended."""
    folder = LocalFolder(tmp_path / "new/here")
    write(folder, "a/b", b"one", complete=False)
    assert (folder.state("a/b", ENTRY), folder.part_bytes("a/b", ENTRY)) == ("absent", 3)
    write(folder, "a/b", b"two", offset=3)
    assert (folder.path / "a/b").read_bytes() == b"onetwo"
    assert (folder.path / "a/b").stat().st_mtime_ns == AT_NS
    assert (folder.state("a/b", ENTRY), os.listdir(folder.path / "a")) == ("present", ["b"])


def test_a_part_of_another_version_is_not_continued(tmp_path: Path) -> None:
    """Its time differs, as that of a part that a crash has left, or it is too large."""
    folder = LocalFolder(tmp_path)
    write(folder, "a/b", b"old", complete=False)
    assert folder.part_bytes("a/b", FileEntry("a/b", 6, AT_NS + 2_000_000_000, False)) == 0
    assert folder.part_bytes("a/b", FileEntry("a/b", 2, AT_NS, False)) == 0
    (tmp_path / "link").symlink_to("a/b" + PART)
    (tmp_path / ("link" + PART)).symlink_to("a/b" + PART)
    assert folder.part_bytes("link", ENTRY) == 0


def test_a_file_that_differs_is_recognised(tmp_path: Path) -> None:
    """By its size or its time."""
    folder = LocalFolder(tmp_path)
    write(folder, "a/b", b"onetwo")
    assert folder.state("a/b", FileEntry("a/b", 7, AT_NS, False)) == "different"
    assert folder.state("a/b", FileEntry("a/b", 6, AT_NS + 2_000_000_000, False)) == "different"


@pytest.mark.parametrize("path", ["link/file", "a/link/file", "link", "pipe", "plain/file"])
def test_nothing_is_written_through_links_or_over_other_things(tmp_path: Path, path: str) -> None:
    """Neither a link to a directory outside nor one to a file is followed; a pipe is not opened."""
    outside, here = tmp_path / "outside", tmp_path / "here"
    outside.mkdir()
    (here / "a").mkdir(parents=True)
    (here / "link").symlink_to(outside)
    (here / "a/link").symlink_to(outside)
    (here / "plain").touch()
    os.mkfifo(here / "pipe")
    folder = LocalFolder(here)
    with pytest.raises(CannotPlace):
        folder.state(path, ENTRY)
    if "/" in path:
        with pytest.raises(CannotPlace):
            folder.open_part(path, ENTRY, 0)
    assert list(outside.iterdir()) == []


def test_a_part_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Otherwise a link with the name of a part would lead outside."""
    (tmp_path / ("file" + PART)).symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=PART):
        LocalFolder(tmp_path).open_part("file", ENTRY, 0)
    assert not (tmp_path / "outside").exists()
