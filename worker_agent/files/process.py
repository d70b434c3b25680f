"""Start the process that lists, sends or moves files of a job as the job's user (child.py), and read its frames.

The process stays in the agent's session: in another one, it would be taken for the orphan of a job (custody.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from worker_agent.files.child import LENGTHS, PIECE_BYTES
from worker_agent.node.users import Account

# How long the process may be silent, as when a network file system does not answer, and how long a move may take.
SILENT_S, MOVE_S = 60.0, 600.0
_COMMAND = (sys.executable, "-S", "-m", "worker_agent.files.child")
_ENVIRON = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


class Place(NamedTuple):
    """A directory of a job: a path that the job cannot redirect, and a path below it that the job may have changed."""

    directory: str
    below: str = ""

    @property
    def path(self) -> str:
        """The whole path."""
        return os.path.join(self.directory, self.below) if self.below else self.directory


async def frames(
    account: Account, place: Place, act: str, *arguments: Any
) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
    """Yield the header and the data of each frame. Raises OSError with the reason if the process fails."""
    loop, stream = asyncio.get_running_loop(), asyncio.StreamReader(limit=4 * PIECE_BYTES)
    process = await asyncio.to_thread(_start, _request(account, place, act, arguments))
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), cast(IO[bytes], process.stdout)
    )
    try:
        while (frame := await _next_frame(stream)) is not None:
            if error := frame[0].get("error"):
                raise OSError(error)
            yield frame
        if code := await asyncio.to_thread(process.wait):
            raise OSError(f"the process that reads the files ended with {code}")
    finally:
        transport.close()
        process.kill()
        # A process that ends later is reaped at the next start of a process.
        process.poll()


def _start(request: bytes) -> subprocess.Popen[bytes]:
    # A file, because a pipe would fill up if the process did not read.
    with tempfile.TemporaryFile() as file:
        file.write(request)
        file.seek(0)
        process = subprocess.Popen(_COMMAND, env=_ENVIRON, cwd="/", stdin=file, stdout=subprocess.PIPE)
    # A larger pipe, which the system may refuse, lets both processes work in longer turns.
    with contextlib.suppress(OSError):
        fcntl.fcntl(cast(IO[bytes], process.stdout), fcntl.F_SETPIPE_SZ, PIECE_BYTES)
    return process


async def _next_frame(stream: asyncio.StreamReader) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame; None at the end."""
    try:
        async with asyncio.timeout(SILENT_S):
            header_bytes, data_bytes = LENGTHS.unpack(await stream.readexactly(LENGTHS.size))
            header = json.loads(await stream.readexactly(header_bytes))
            return header, await stream.readexactly(data_bytes) if data_bytes else b""
    except TimeoutError:
        raise OSError(f"reading the files took longer than {SILENT_S:g} s") from None
    except asyncio.IncompleteReadError as incomplete:
        if incomplete.partial:
            raise OSError("the process that reads the files ended early") from None
        return None


def move(account: Account, place: Place, patterns: list[str], target: Path) -> int:
    """Move the files that match the patterns to a directory; return their number. Raises OSError if that fails."""
    request = _request(account, place, "move", (patterns, str(target)))
    try:
        done = subprocess.run(
            _COMMAND,
            env=_ENVIRON,
            cwd="/",
            input=request,
            stdout=subprocess.PIPE,
            timeout=MOVE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"moving the files took longer than {MOVE_S:g} s") from None
    header = json.loads(done.stdout[LENGTHS.size :] or b"{}")
    if "moved" not in header:
        raise OSError(header.get("error") or f"the process that moves the files ended with {done.returncode}")
    return int(header["moved"])


def _request(account: Account, place: Place, act: str, arguments: tuple[Any, ...]) -> bytes:
    user = {"uid": account.uid, "gid": account.gid, "groups": account.groups}
    return json.dumps(user | place._asdict() | {"act": act, "arguments": arguments}).encode()
