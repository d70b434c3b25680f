"""Prepared batches that the jobs of a group pass to each other: files in shared memory, and a file for each member.

The batches of all epochs are one stream with numbers from 0. A member's file has the number that it takes next, and is
locked by its process: a lock that is free means that the process is gone. Rules:

- a member prepares a batch while it holds that batch's claim: a link to its own file, so that one act makes the claim
  and names its holder. A claim of a process that is no live member is void, and the next member makes one after it;
- it prepares the first batch that it has yet to take, and that is neither there nor claimed: batches that it has yet to
  take were not removed, so each is prepared once;
- a batch stays until every live member has passed it; no member prepares further ahead than a window;
- a member that keeps the others waiting for `patience_s` is left behind: its file is removed, and it sees that;
- a member that waits in vain prepares the batch itself, so no failure of others can end or alter its stream;
- a member that joins when no other one lives finds no batches: it has a new directory (`ring.py`).

A batch is a whole file under its name, or there is none. Nothing else has to be right for a member to receive every
batch once, in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import struct
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable

from gavel.training.data import ring

# The number of the batch that a member takes next, and when it last asked for one. Native, so that a number is written
# and read at once.
_POSITION = struct.Struct("qd")
_SUM = struct.Struct("<I")
_BATCH, _CLAIM, _NEW = ".batch", ".claim", "new-"
# How often to look which members live.
LOOK_S = 0.5
# How long to wait for a batch before looking again: half as long as it has been waited for, between these limits. A
# member that comes late by that finds the next batches prepared, so looking more often would only take processor time.
WAIT_S, WAIT_MAX_S = 0.001, 0.02
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
        """`folder`: the directory of the group."""
        self._group, self._patience_s, self._clock, self._sleep = folder, patience_s, clock, sleep
        # The ring of which this process is or was a member.
        self._folder = ""
        # By name: the file of each live member, this one included; and the inodes of these files.
        self._members: dict[str, mmap.mmap] = {}
        self._inodes: set[int] = set()
        self._looked_s = float("-inf")
        # Batches below this number have been removed; None: this member has removed none yet.
        self._removed_below: int | None = None
        self._batch_bytes = 0
        # By batch that this member is preparing: which claim of the batch is its own. And batches that found no room.
        self._claims: dict[int, int] = {}
        self._kept: dict[int, bytes] = {}
        # Set when this member has let the window of the group move on.
        self.moved = threading.Event()
        self.name = ""
        self._fd = -1
        _stagings.add(self)

    # --------------------------------------------------------------------------------------------- membership

    def join(self, epoch_batches: int, position: int) -> int:
        """Become a member; return the number of the first batch: the next beginning of an epoch for all members.

        `position`: where to begin if there are no others. `epoch_batches`: the number of batches of an epoch.
        """
        self.leave()

        def next_epoch(position: int) -> int:
            others = [at for name, (at, _) in self.look().items() if name != self.name]
            return -(-min(others, default=position) // epoch_batches) * epoch_batches

        os.makedirs(self._group, mode=0o700, exist_ok=True)
        with ring.locked(self._group, self._clock, self._sleep):
            self._folder, dead = ring.enter(self._group)
            position = next_epoch(position)
            self._enter(position)
        ring.remove(dead)
        # The others may have begun that epoch, and removed batches of it, before they could see this member.
        while (later := next_epoch(position)) > position:
            position = later
            self._write(position)
        self._removed_below = None
        return position

    def _enter(self, position: int) -> None:
        """Make the file of this member, locked from its beginning on."""
        self._fd, path = tempfile.mkstemp(prefix=_NEW, dir=self._folder)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._write(position)
            name = os.path.basename(path).replace(_NEW, ring.MEMBER)
            os.rename(path, os.path.join(self._folder, name))
        except OSError:
            os.close(self._fd)
            self._fd = -1
            raise
        self.name = name

    def leave(self) -> None:
        """Be no member any more. The last one removes what is left."""
        if self._fd < 0:
            return
        self.release()
        self.resign()
        os.close(self._fd)
        self._fd, self.name = -1, ""
        self._kept.clear()
        is_last = False
        with contextlib.suppress(OSError), ring.locked(self._group, self._clock, self._sleep):
            is_last = not ring.is_alive(self._folder)
        if is_last:
            ring.remove([self._folder])

    def resign(self) -> None:
        """Let the others go on without this member. It sees that as if it had been left behind."""
        with contextlib.suppress(OSError):
            if self.is_member:
                os.unlink(self._own_path)

    def forget(self) -> None:
        """Close what this process holds and touch no file, in a forked child or as a process does that is killed."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd, self._claims = -1, {}

    @property
    def is_member(self) -> bool:
        """Whether this process is a member; False once others have left it behind."""
        return self._fd >= 0 and os.path.exists(self._own_path)

    def look(self) -> dict[str, tuple[int, float]]:
        """Return the positions of the live members, and remove the files of those that are gone."""
        members, inodes = {}, set()
        for name in ring.names(self._folder, ring.MEMBER):
            path = os.path.join(self._folder, name)
            with contextlib.suppress(OSError, ValueError):
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if ring.is_held(fd):
                        members[name] = self._members.get(name) or mmap.mmap(fd, _POSITION.size)
                        inodes.add(os.fstat(fd).st_ino)
                    else:
                        os.unlink(path)
                finally:
                    os.close(fd)
        self._members, self._inodes, self._looked_s = members, inodes, self._clock()
        return self._positions()

    def _positions(self) -> dict[str, tuple[int, float]]:
        """Return where the members of the last look are now, and when they last asked."""
        return {name: _POSITION.unpack_from(file) for name, file in self._members.items()}

    # ---------------------------------------------------------------------------------------------- preparing

    def claim(self) -> int | None:
        """Return the number of a batch that this member, and no other, has to prepare now; None if there is none."""
        self._look_again()
        window = self._window()
        # Without room for batches, this member prepares the one that it takes next, and no other.
        if self._kept:
            window = window[:1]
        return next((number for number in window if self._try_claim(number)), None)

    def _window(self) -> range:
        """Return the numbers of the batches that this member may prepare now."""
        positions = {name: at for name, (at, _) in self._positions().items()}
        if self.name not in positions:
            return range(0)
        ahead = AHEAD * len(positions)
        if self._batch_bytes:
            ahead = max(1, min(ahead, ROOM_BYTES // self._batch_bytes))
        return range(positions[self.name], min(positions.values()) + ahead)

    def _try_claim(self, number: int) -> bool:
        """Claim a batch; return whether this member has to prepare it."""
        if number in self._claims or number in self._kept or self._is_there(number):
            return False
        for turn in itertools.count():
            try:
                os.link(self._own_path, self._claim_path(number, turn))
                break
            except FileExistsError:
                if not self._is_void(number, turn):
                    return False
            except OSError:
                # This member has been left behind, or there is no room.
                return False
        self._claims[number] = turn
        # Another member may have prepared it meanwhile.
        if self._is_unprepared(number):
            return True
        self._release(number)
        return False

    def _is_void(self, number: int, turn: int) -> bool:
        """Return whether the holder of a claim is no live member. Claims in use count as valid when they go."""
        try:
            inode = os.stat(self._claim_path(number, turn)).st_ino
        except OSError:
            return False
        if inode not in self._inodes:
            # It may be a new member.
            self.look()
        return inode not in self._inodes

    def _is_unprepared(self, number: int) -> bool:
        """Return whether nobody has prepared a batch that this member holds the claim of."""
        # In this order: a batch that is not there before this member takes it was not removed, so it was never there.
        return not self._is_there(number) and number in self._window() and self.is_member

    def release(self) -> None:
        """Give up all claims."""
        for number in list(self._claims):
            self._release(number)

    def _release(self, number: int) -> None:
        """Give up a claim, and remove it with the void ones before it."""
        turn = self._claims.pop(number, -1)
        # The claim of a process that is no member is void, and others may have made claims after it, so it stays.
        if self.is_member:
            self._remove(f"{number}.{each}{_CLAIM}" for each in range(turn + 1))

    def put(self, number: int, content: bytes) -> None:
        """Give a claimed batch to all members; without room for it, keep it for this one."""
        self._batch_bytes = max(self._batch_bytes, len(content))
        if self.is_member:
            path = ""
            try:
                fd, path = tempfile.mkstemp(prefix=_NEW, suffix=_BATCH, dir=self._folder)
                with os.fdopen(fd, "wb") as file:
                    file.write(_SUM.pack(zlib.crc32(content)) + content)
                os.rename(path, self._path(number))
            except OSError:
                self._kept[number] = content
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self._release(number)

    # ------------------------------------------------------------------------------------------------- taking

    def take(self, number: int) -> bytes | None:
        """Wait for a batch; None if this process must prepare it itself. Then pass on to the next number.

        A process that was left behind, or has waited in vain, is no member afterwards.
        """
        began_s = self._clock()
        while self.is_member:
            self._write(number)
            content = self._kept.get(number) or self._read(number)
            if content is None:
                self._wait(number, self._clock() - began_s)
                continue
            self._write(number + 1)
            self._kept.pop(number, None)
            self._batch_bytes = max(self._batch_bytes, len(content))
            self._remove_passed(number)
            # A damaged batch is empty.
            return content or None
        return None

    def _wait(self, number: int, waited_s: float) -> None:
        """Wait for a batch that is not there."""
        self._look_again()
        if waited_s >= 2 * self._patience_s:
            self.resign()
            return
        if waited_s >= self._patience_s:
            self._leave_behind(number)
        self._sleep(min(max(waited_s / 2, WAIT_S), WAIT_MAX_S))

    def _look_again(self) -> None:
        if self._clock() - self._looked_s >= LOOK_S:
            self.look()

    def _leave_behind(self, number: int) -> None:
        """Remove the members that have asked for nothing for `patience_s`, and keep others waiting."""
        for name, (at, asked_s) in self.look().items():
            is_late = self._clock() - asked_s >= self._patience_s
            if name != self.name and at <= number and is_late:
                self._remove([name])
        self.look()

    def _remove_passed(self, number: int) -> None:
        """Remove the batches that every live member has passed, if this member is the last one to pass a number."""
        if any(at <= number for at, _ in self._positions().values()):
            return
        # A new member may have come. One that comes after this look begins above these numbers.
        low = min((at for at, _ in self.look().values()), default=0)
        if self._removed_below is None:
            names = ring.names(self._folder, "")
            passed = [name for name in names if name.endswith(_BATCH) and _number(name) < low]
        else:
            passed = [f"{each}{_BATCH}" for each in range(self._removed_below, low)]
        self._remove(passed)
        self._removed_below = low
        self.moved.set()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, name))

    # ------------------------------------------------------------------------------------------------- files

    def _read(self, number: int) -> bytes | None:
        """Return a batch; None if it is not there, and nothing if it is damaged."""
        try:
            with open(self._path(number), "rb", buffering=0) as file:
                content = file.readall()
        except OSError:
            return None
        checksum, content = content[: _SUM.size], content[_SUM.size :]
        return content if checksum == _SUM.pack(zlib.crc32(content)) else b""

    def _write(self, position: int) -> None:
        os.pwrite(self._fd, _POSITION.pack(position, self._clock()), 0)

    def _is_there(self, number: int) -> bool:
        return os.path.exists(self._path(number))

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number}{_BATCH}")

    def _claim_path(self, number: int, turn: int) -> str:
        return os.path.join(self._folder, f"{number}.{turn}{_CLAIM}")

    @property
    def _own_path(self) -> str:
        return os.path.join(self._folder, self.name)


def _number(name: str) -> float:
    """Return the number in the name of a batch's file; infinity if it has none."""
    number = name[: -len(_BATCH)]
    return int(number) if number.isdigit() else float("inf")


def _forget() -> None:
    """Drop the locks in a forked child, such as a data loader's worker, which may outlive the member."""
    for staging in _stagings:
        staging.forget()


_stagings: weakref.WeakSet[Staging] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget)
