"""The process that reads files of jobs: whole files, the rest of files, and files that change meanwhile."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from worker_agent.files import process
from worker_agent.files.process import Place, frames
from worker_agent.node.users import Account, Users

OWN = Users(single_user=True).account("")
# Larger than what the process can send ahead of its reader.
LARGE = b"0123456789" * 2_000_000


def wanted(path: Path, offset: int = 0, **changes: int) -> dict[str, Any]:
    """Return a request for a file as it is now."""
    status = path.stat()
    version = {"size_bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    return {"path": path.name, "offset": offset, **version, **changes}


def sent(folder: Path, *files: dict[str, Any], account: Account = OWN) -> list[tuple[dict[str, Any], bytes]]:
    """Return all frames for these files."""

    async def read() -> list[tuple[dict[str, Any], bytes]]:
        return [frame async for frame in frames(account, Place(str(folder)), "send", files)]

    return asyncio.run(read())


def test_files_are_sent_one_after_another_from_their_offsets(tmp_path: Path) -> None:
    """The first frame of a file describes it, the last one ends it; an offset in a changed file counts as 0."""
    (tmp_path / "a").write_text("one two")
    (tmp_path / "b").touch(mode=0o755)
    a, b = tmp_path / "a", tmp_path / "b"
    received = sent(tmp_path, wanted(a, 4), wanted(a, 4, modified_ns=1), wanted(b))
    data = {
        index: b"".join(part for header, part in received if header["index"] == index) for index in range(3)
    }
    starts = [(header["offset"], header["file"]["executable"]) for header, _ in received if "file" in header]
    assert (data, starts) == ({0: b"two", 1: b"one two", 2: b""}, [(4, False), (0, False), (0, True)])
    assert [header["problem"] for header, _ in received if header.get("end")] == ["", "", ""]


def test_a_file_that_cannot_be_sent_stops_no_other(tmp_path: Path) -> None:
    """A pipe, a directory and a file that is gone each end with the reason, without a wait."""
    (tmp_path / "file").write_text("content")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    requests = [{**wanted(tmp_path / "file"), "path": name} for name in ("gone", "pipe", "folder", "file")]
    received = sent(tmp_path, *requests)
    ends = [(header["index"], bool(header["problem"])) for header, _ in received if header.get("end")]
    assert ends == [(0, True), (1, True), (2, True), (3, False)]
    assert b"".join(part for _, part in received) == b"content"


@pytest.mark.parametrize(("size", "received_bytes"), [(1_000_000, None), (30_000_000, len(LARGE))])
def test_a_file_that_changes_meanwhile_ends_with_a_problem(
    tmp_path: Path, size: int, received_bytes: int | None
) -> None:
    """A file that shrinks ends early, one that grows is sent up to its first size, and neither hangs."""
    path = tmp_path / "file"
    path.write_bytes(LARGE)

    async def read() -> tuple[int, dict[str, Any]]:
        total, last = 0, {}
        async with aclosing(frames(OWN, Place(str(tmp_path)), "send", [wanted(path)])) as parts:  # type: ignore[type-var]
            async for last, data in parts:  # noqa: B007
                if not total and data:
                    os.truncate(path, size)
                total += len(data)
        return total, last

    total, last = asyncio.run(read())
    assert last["problem"]
    assert total == received_bytes if received_bytes else total < len(LARGE)


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """The reason names the directory."""
    with pytest.raises(OSError, match="gone"):
        sent(tmp_path / "gone")


def test_a_process_that_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a network file system does not answer."""
    monkeypatch.setattr(process, "_COMMAND", ("sleep", "600"))
    monkeypatch.setattr(process, "SILENT_S", 0.05)
    with pytest.raises(OSError, match="longer"):
        sent(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_are_read_with_the_rights_of_the_user() -> None:
    """An agent that is root reads nothing that the user of the job may not read."""
    someone = Account(name="someone", home=Path("/"), login_shell="/bin/sh", uid=54321, gid=54321)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for name, mode in (("open", 0o644), ("private", 0o600)):
            (folder / name).write_text(name)
            (folder / name).chmod(mode)
        received = sent(folder, wanted(folder / "open"), wanted(folder / "private"), account=someone)
    assert b"".join(part for _, part in received) == b"open"
    assert [bool(header["problem"]) for header, _ in received if header.get("end")] == [False, True]
