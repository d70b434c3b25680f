"""`python -m worker_agent.files.child`: lists, sends or moves the files of a job, as the job's user.

The agent may be root. This process becomes the user before it opens the first file, so that the kernel itself refuses
what the user may not read. It reads one request as JSON, and writes frames: the lengths of a header and of data, the
header as JSON, the data. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from worker_agent.files.tree import LeftOut, Search, open_below
from worker_agent.shim.child import CannotStart, drop_to, reset_oom_score

PIECE_BYTES = 1 << 20
# How many files are in one frame of a list, which becomes one message.
_LIST_FILES = 200
LENGTHS = struct.Struct(">II")


def write_frame(header: dict[str, Any], data: bytes = b"") -> None:
    """Write one frame to standard output."""
    text = json.dumps(header).encode()
    for part in (LENGTHS.pack(len(text), len(data)) + text, data):
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


def list_files(root: int, patterns: Sequence[str]) -> None:
    """Write the files that match any of the patterns, what is left out, and the patterns that match nothing."""
    search, files = Search(root), []
    for file in search.find(patterns):
        files.append(_entry(file.path, file.status))
        if len(files) == _LIST_FILES:
            write_frame({"files": files})
            files = []
    more = [f"{search.notices_more:,} more are left out"] if search.notices_more else []
    write_frame({"files": files, "notices": [*search.notices, *more], "unmatched": search.unmatched})


def send_files(root: int, files: Sequence[dict[str, Any]]) -> None:
    """Write files in pieces, each from its offset or, if it has changed, from its beginning."""
    for index, wanted in enumerate(files):
        try:
            fd = open_below(root, wanted["path"])
        except (LeftOut, OSError) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            write_frame({"index": index, "end": True, "problem": words or "cannot be opened"})
            continue
        try:
            _send_file(fd, index, wanted)
        finally:
            os.close(fd)


def _send_file(fd: int, index: int, wanted: dict[str, Any]) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        write_frame({"index": index, "end": True, "problem": "is a directory"})
        return
    is_same = (status.st_size, status.st_mtime_ns) == (wanted["size_bytes"], wanted["modified_ns"])
    offset = min(wanted["offset"], status.st_size) if is_same else 0
    write_frame({"index": index, "offset": offset, "file": _entry(wanted["path"], status)})
    # A file that grows is sent up to the size that its first frame gives.
    while offset < status.st_size and (
        data := os.pread(fd, min(PIECE_BYTES, status.st_size - offset), offset)
    ):
        write_frame({"index": index, "offset": offset}, data)
        offset += len(data)
    now = os.fstat(fd)
    has_changed = (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns)
    write_frame({"index": index, "end": True, "problem": "changed while it was read" if has_changed else ""})


def move_files(root: int, patterns: Sequence[str], target: str) -> None:
    """Move the files that match any of the patterns to the directory `target`; copy the files behind links."""
    # Links come first, because a file that was moved is not behind its link any more.
    files = sorted(Search(root).find(patterns), key=lambda file: not file.is_link)
    for file in files:
        path = os.path.join(target, file.path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # A file in a read-only directory cannot be renamed.
        with contextlib.suppress(PermissionError):
            if not file.is_link:
                os.rename(file.path, path, src_dir_fd=root)
                continue
        with os.fdopen(open_below(root, file.path), "rb") as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy, PIECE_BYTES)
        os.utime(path, ns=(file.status.st_atime_ns, file.status.st_mtime_ns))
    write_frame({"moved": len(files)})


def _entry(path: str, status: os.stat_result) -> dict[str, Any]:
    is_executable = bool(status.st_mode & stat.S_IXUSR)
    sizes = {"size_bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    return {"path": path, **sizes, "executable": is_executable}


def carry_out(request: dict[str, Any]) -> None:
    """Become the user, open the directory, and do what the request names."""
    reset_oom_score()
    drop_to(request["uid"], request["gid"], request["groups"])
    base = os.open(request["directory"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    root = open_below(base, request["below"])
    if not stat.S_ISDIR(os.fstat(root).st_mode):
        raise NotADirectoryError(f"{request['below']} is not a directory")
    actions: dict[str, Callable[..., None]] = {"list": list_files, "send": send_files, "move": move_files}
    actions[request["act"]](root, *request["arguments"])


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        carry_out(json.load(sys.stdin))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        write_frame({"error": f"{where}{error.strerror or error}"})
    except (LeftOut, CannotStart) as fault:
        write_frame({"error": str(fault)})
