"""Prepared batches that the jobs of a group pass to each other: files in shared memory, and a file for each member.

The batches of all epochs are one stream with numbers from 0. A member's file has the number that it takes next, and is
locked by its process: a lock that is free means that the process is gone. Rules:

- batch n is prepared by the live member that a hash of n and its name chooses: no messages are needed;
- it stays until every live member has passed it; no member prepares further ahead than a window;
- a member that keeps the others waiting for `patience_s` is left behind: its file is removed, and it sees that;
- a member that waits in vain prepares the batch itself, so no failure of others can end or alter its stream.

A batch is a whole file under its name, or there is none. Nothing else has to be right for a member to receive every
batch once, in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable

# The number of the batch that a member takes next, and when it last asked for one.
_POSITION = struct.Struct("<qd")
_SUM = struct.Struct("<I")
_MEMBER, _BATCH, _NEW = "member-", ".batch", "new-"
# How often to look which members live.
LOOK_S = 0.5
WAIT_S = 0.002
# Batches ahead of the slowest member, per member, and the memory that all batches may take.
AHEAD = 4
ROOM_BYTES = 5_000_000_000


class Staging:
    """One member of a group, and its view of the others."""

    def __init__(
        self,
        folder: str,
        patience_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder, self._patience_s, self._clock, self._sleep = folder, patience_s, clock, sleep
        # By name: the position of each live member, this one included, and when it last asked.
        self._members: dict[str, tuple[int, float]] = {}
        self._looked_s = float("-inf")
        self._removed_below = 0
        self._batch_bytes = 0
        # The batches that this member has prepared.
        self._prepared: set[int] = set()
        self.name = ""
        self._fd = -1

    # --------------------------------------------------------------------------------------------- membership

    def join(self, epoch_batches: int, position: int) -> int:
        """Become a member; return the number of the first batch: the next beginning of an epoch for all members.

        `position`: where to begin if there are no others. `epoch_batches`: the number of batches of an epoch.
        """
        self.leave()
        others = [at for at, _ in self.look().values()]
        if others:
            position = -(-min(others) // epoch_batches) * epoch_batches
        self._fd, path = tempfile.mkstemp(prefix=_NEW, dir=self._folder)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._write(position)
        self.name = os.path.basename(path).replace(_NEW, _MEMBER)
        os.rename(path, os.path.join(self._folder, self.name))
        self._removed_below = position
        self.look()
        return position

    def leave(self) -> None:
        """Be no member any more. The last one removes what is left."""
        if self._fd < 0:
            return
        self.resign()
        os.close(self._fd)
        self._fd, self.name = -1, ""
        if not self.look():
            self._remove_batches(None)

    def resign(self) -> None:
        """Let the others go on without this member. It sees that as if it had been left behind."""
        with contextlib.suppress(OSError):
            if self.is_member:
                os.unlink(os.path.join(self._folder, self.name))

    @property
    def is_member(self) -> bool:
        """Whether this process is a member; False once others have left it behind."""
        return self._fd >= 0 and os.fstat(self._fd).st_nlink > 0

    def look(self) -> dict[str, tuple[int, float]]:
        """Return the live members, and remove the files of those that are gone."""
        members = {}
        for name in self._names(_MEMBER):
            path = os.path.join(self._folder, name)
            with contextlib.suppress(OSError, struct.error):
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if _is_free(fd):
                        os.unlink(path)
                    else:
                        members[name] = _POSITION.unpack(os.pread(fd, _POSITION.size, 0))
                finally:
                    os.close(fd)
        self._members, self._looked_s = members, self._clock()
        return members

    # ------------------------------------------------------------------------------------------------ batches

    def to_prepare(self) -> list[int]:
        """Return the numbers of the batches that this member has to prepare now, the first one first."""
        if self._clock() - self._looked_s >= LOOK_S:
            self.look()
        return [
            number
            for number in self._window()
            if self._is_mine(number) and not os.path.exists(self._path(number))
        ]

    def _is_mine(self, number: int) -> bool:
        """Return whether this member is the one to prepare a batch, and has not done so."""
        members = self._members
        return self.name in members and number not in self._prepared and self.name == owner(number, members)

    def _window(self) -> range:
        """Return the numbers of the batches that may be prepared now."""
        positions = [at for at, _ in self._members.values()]
        if not positions:
            return range(0)
        ahead = AHEAD * len(positions)
        if self._batch_bytes:
            ahead = max(1, min(ahead, ROOM_BYTES // self._batch_bytes))
        return range(min(positions), min(positions) + ahead)

    def put(self, number: int, content: bytes) -> None:
        """Give a batch to all members; without room for it nothing happens."""
        self._batch_bytes = max(self._batch_bytes, len(content))
        self._prepared.add(number)
        fd, path = tempfile.mkstemp(prefix=_NEW, suffix=_BATCH, dir=self._folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(_SUM.pack(zlib.crc32(content)) + content)
            os.rename(path, self._path(number))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def take(self, number: int) -> bytes | None:
        """Wait for a batch; None if this process must prepare it itself. Then pass on to the next number.

        A process that was left behind, or has waited in vain, is no member afterwards.
        """
        began_s = self._clock()
        while True:
            now_s = self._clock()
            if not self.is_member:
                return None
            self._write(number)
            content = self._read(number)
            if content is None and self._is_coming(number, now_s - began_s):
                self._sleep(WAIT_S)
                continue
            if self.is_member:
                self._write(number + 1)
                self._remove_passed()
            return content

    def _is_coming(self, number: int, waited_s: float) -> bool:
        """Return whether to wait longer for a batch that is not there."""
        if self._clock() - self._looked_s >= LOOK_S:
            self.look()
        if all(at > number for name, (at, _) in self._members.items() if name != self.name):
            # Nobody else needs it, so only this member may still prepare it.
            return self._is_mine(number)
        if waited_s >= 2 * self._patience_s:
            self.leave()
            return False
        if waited_s >= self._patience_s:
            self._leave_behind(number)
        return True

    def _leave_behind(self, number: int) -> None:
        """Remove the members that have asked for nothing for `patience_s`, and keep others waiting."""
        for name, (at, asked_s) in self.look().items():
            is_late = self._clock() - asked_s >= self._patience_s
            if name != self.name and at <= number and is_late:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._folder, name))

    def _remove_passed(self) -> None:
        """Remove the batches that every live member has passed."""
        # Positions only grow, so old ones are safe; those of new members are not there yet, but they wait for nothing.
        low = min((at for at, _ in self.look().values()), default=0)
        if low > self._removed_below:
            self._remove_batches(low)
            self._removed_below = low

    def _remove_batches(self, below: int | None) -> None:
        for name in self._names(""):
            number = name[: -len(_BATCH)] if name.endswith(_BATCH) else ""
            if number.isdigit() and (below is None or int(number) < below):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._folder, name))

    def _read(self, number: int) -> bytes | None:
        try:
            with open(self._path(number), "rb") as file:
                content = file.read()
        except OSError:
            return None
        checksum, content = content[: _SUM.size], content[_SUM.size :]
        return content if checksum == _SUM.pack(zlib.crc32(content)) else None

    def _write(self, position: int) -> None:
        os.pwrite(self._fd, _POSITION.pack(position, self._clock()), 0)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number}{_BATCH}")

    def _names(self, prefix: str) -> list[str]:
        with contextlib.suppress(OSError):
            return sorted(name for name in os.listdir(self._folder) if name.startswith(prefix))
        return []


def owner(number: int, members: dict[str, tuple[int, float]]) -> str:
    """Return the member that prepares a batch, by rendezvous hashing: who comes or goes moves only its own batches."""
    return max(members, key=lambda name: hashlib.blake2b(f"{number} {name}".encode()).digest())


def _is_free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
