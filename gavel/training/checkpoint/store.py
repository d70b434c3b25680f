"""Checkpoints in a directory: sets of files, with one part from each rank, that count only when complete.

    DIR/claims/e00000003-a00000002.json       the attempts that have used the directory, and where each resumed
    DIR/e00000003-a00000002/                  everything that an attempt has saved
      step-000000001200/
        state.pt  rank-0.pt  rank-1.pt        files, as many as the ranks write
        part-0.json  part-1.json              the files of a rank, with their sizes and CRC-32
        COMPLETE                              the mark that all parts are there: the step is saved

The rules:

- **A set is good if it is complete and every file in it has the size and checksum that its part states.** The newest
  good set counts: the greatest step of the newest attempt that has a good set. Damaged sets are skipped with a warning.
  The two newest complete sets are kept; older ones are deleted.
- **The first rank to see all parts writes COMPLETE.** If two ranks do so at once, both write the same content. A rank
  waits for COMPLETE for at most `wait_s`, or until another rank reports that it could not write (`part-1.failed`).
- **Only the newest attempt completes sets.** An attempt claims the directory when it loads, before it reads anything,
  and checks the claims of others before it completes a set. It writes only in its own directory, and deletes only there
  and in older ones, so that a stale attempt cannot damage the sets of a newer one.
- **All ranks resume from the same set.** Under a lease rank 0 chooses and writes its choice into its claim; the other
  ranks wait for that. Outside Gavel each rank chooses by the same rule, and there are no claims.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gavel.training.checkpoint import atomic
from gavel.training.environment import Run, ranks_of, run_of
from gavel.training.errors import CheckpointError, IncompleteCheckpoint, StaleAttempt

log = logging.getLogger("gavel.training")

KEPT = 2
# How long rank 0 may take to start and to check the existing sets.
CHOICE_S = 600.0
# The first and the longest pause between two looks at the directory.
POLL_S = 0.01
POLL_S_MAX = 0.2


class Token(NamedTuple):
    """The key that orders attempts: the scheduler's epoch, then the number of the lease.

    The number of an attempt counts within its job only, but a job may resume in the directory of an earlier job. The
    numbers of leases count across all jobs.
    """

    epoch: int
    # The number of the lease under which the attempt runs.
    attempt: int

    def __str__(self) -> str:
        return f"e{self.epoch:08d}-a{self.attempt:08d}"


class CompleteSet(NamedTuple):
    """A complete set, as its COMPLETE describes it; its files have not been checked."""

    token: Token
    step: int
    path: Path
    # The CRC-32 and size of each file, by its name.
    files: dict[str, Any]
    # The number of ranks that saved it.
    world: int


class Store:
    """The checkpoints of one job, as one rank of one attempt uses them."""

    def __init__(self, root: Path, token: Token | None, rank: int, world: int) -> None:
        self.root, self.rank, self.world = root, rank, world
        # The attempt under which the directory is claimed; None outside Gavel, where it is not claimed.
        self.claimant = token
        self._token = token or Token(0, 0)
        # The CRC-32 and size of each file that this rank has written since its last `commit`.
        self._files: dict[str, dict[str, int]] = {}
        # Numbers that this rank adds to its parts, and those of all ranks in the newest set.
        self.notes: dict[str, float] = {}
        self.notes_of_ranks: list[dict[str, float]] = []
        # The size of this rank's part of the newest set.
        self.size_bytes: int | None = None

    # -------------------------------------------------------------------------------------------- loading

    def choose(self) -> CompleteSet | None:
        """Claim the directory, and return the set to resume from; None for a fresh start."""
        if self.claimant is None:
            self._make(self.root)
            candidate = self._newest_good()
            self._token = max([self._token, *(token for token, _ in self._attempts())])
            if self.rank == 0:
                self._clear_after(candidate)
            return candidate
        set_path = self.claim(lambda: _relative_path(self._newest_good()))
        return None if set_path is None else self._set_at(set_path)

    def claim(self, choose: Callable[[], str | None]) -> Path | None:
        """Claim the directory, and return the path to resume from. Rank 0 chooses it with `choose`, for all ranks."""
        self._make(self.root / "claims")
        self.check_claims()
        if self.rank != 0:
            return self._choice_of_rank_0()
        # Claim before anything is read: from now on no older attempt completes a set.
        self._write_claim({})
        chosen = choose()
        self._write_claim({"from": chosen})
        return None if chosen is None else self.root / chosen

    def check_claims(self) -> None:
        """Raise StaleAttempt if a newer attempt has claimed the directory."""
        if self.claimant is None:
            return
        newest = max(
            (parse_token(path.stem) or self._token for path in entries(self.root / "claims")), default=None
        )
        if newest is not None and newest > self._token:
            raise StaleAttempt(
                f"attempt {newest} has taken over {self.root}; this is attempt {self._token}, which must no "
                "longer save and ends here"
            )

    def _make(self, directory: Path) -> None:
        try:
            atomic.make_directory(directory)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError("not writable")
        except OSError as fault:
            raise CheckpointError(
                f"cannot save checkpoints in {self.root}: {fault}; choose a directory that this user may write"
            ) from fault

    def _write_claim(self, content: dict[str, Any]) -> None:
        path = self.root / "claims" / f"{self._token}.json"
        data = json.dumps({**content, "world": self.world}).encode()
        try:
            atomic.replace_bytes(path, data)
        except OSError as fault:
            raise CheckpointError(f"cannot write in the checkpoint directory {self.root}: {fault}") from fault

    def _choice_of_rank_0(self) -> Path | None:
        claim = self.root / "claims" / f"{self._token}.json"
        for _ in self._poll(CHOICE_S):
            content = _json(claim)
            if content is not None and "from" in content:
                return None if content["from"] is None else self.root / str(content["from"])
        raise CheckpointError(
            f"rank 0 did not choose within {CHOICE_S:g} s where to resume: {claim} is missing; "
            "is the checkpoint directory the same one on all nodes?"
        )

    def _set_at(self, path: Path) -> CompleteSet:
        for candidate in self._sets():
            if candidate.path == path and (self.rank == 0 or self._is_good(candidate)):
                return candidate
        raise CheckpointError(f"rank 0 resumes from {path}, which this rank cannot read")

    def _newest_good(self) -> CompleteSet | None:
        for candidate in self._sets():
            if self._is_good(candidate):
                return candidate
        return None

    def _is_good(self, candidate: CompleteSet) -> bool:
        for name, expected in candidate.files.items():
            try:
                actual = atomic.checksum(candidate.path / name)
            except OSError as fault:
                log.warning("gavel: checkpoint %s is skipped: %s", candidate.path, fault)
                return False
            if actual != expected:
                log.warning("gavel: checkpoint %s is skipped: %s is damaged", candidate.path, name)
                return False
        return True

    def _sets(self) -> list[CompleteSet]:
        """Return the complete sets, the newest first."""
        sets = []
        for token, attempt in self._attempts():
            for path in entries(attempt):
                step = re.fullmatch(r"step-(\d{1,18})", path.name)
                content = _json(path / "COMPLETE") if step is not None else None
                if step is None or content is None:
                    continue
                files, world = content.get("files"), content.get("world")
                if isinstance(files, dict) and isinstance(world, int):
                    sets.append(CompleteSet(token, int(step.group(1)), path, files, world))
                else:
                    log.warning("gavel: checkpoint %s is skipped: COMPLETE is damaged", path)
        return sorted(sets, key=lambda candidate: (candidate.token, candidate.step), reverse=True)

    def _attempts(self) -> list[tuple[Token, Path]]:
        named = [(parse_token(path.name), path) for path in entries(self.root)]
        return [(token, path) for token, path in named if token is not None]

    # --------------------------------------------------------------------------------------------- saving

    def write(self, step: int, name: str, write: atomic.Write) -> None:
        """Write one file of this rank's part."""
        self._files[name] = atomic.replace(self._make_set(step) / name, write)

    def commit(self, step: int, wait_s: float) -> None:
        """Finish this rank's part, and wait until the set is complete."""
        self.check_claims()
        set_path = self._make_set(step)
        content = {"files": self._files, "world": self.world, "notes": self.notes}
        part = json.dumps(content).encode()
        self.size_bytes = sum(entry["bytes"] for entry in self._files.values())
        self._files = {}
        atomic.replace_bytes(set_path / f"part-{self.rank}.json", part)
        for _ in self._poll(wait_s):
            if (set_path / "COMPLETE").exists() or self._try_to_complete(set_path):
                if self.rank == 0:
                    self.notes_of_ranks = self._read_notes(set_path)
                    self._delete_old()
                return
            if any(path.suffix == ".failed" for path in entries(set_path)):
                raise IncompleteCheckpoint(f"another rank could not write its part of step {step}")
        missing = [rank for rank in range(self.world) if not (set_path / f"part-{rank}.json").exists()]
        raise IncompleteCheckpoint(
            f"after {wait_s:g} s the part of rank {', '.join(map(str, missing))} is missing in {set_path}: "
            "was it at another step, or is this directory different on some node?"
        )

    def give_up(self, step: int) -> None:
        """Report to the other ranks that this rank could not write; without other ranks, delete its files."""
        self._files = {}
        with contextlib.suppress(OSError):
            if self.world == 1:
                shutil.rmtree(self._set_path(step))
            else:
                (self._make_set(step) / f"part-{self.rank}.failed").touch()

    def _try_to_complete(self, set_path: Path) -> bool:
        """Write COMPLETE if all parts are there. Return whether all are."""
        files: dict[str, Any] = {}
        for rank in range(self.world):
            part = _json(set_path / f"part-{rank}.json")
            if part is None or part.get("world") != self.world:
                return False
            files.update(part["files"])
        content = json.dumps({"files": dict(sorted(files.items())), "world": self.world}).encode()
        self.check_claims()
        atomic.replace_bytes(set_path / "COMPLETE", content)
        return True

    def _read_notes(self, set_path: Path) -> list[dict[str, float]]:
        """Return the notes of all ranks, without values that are no numbers."""
        parts = [_json(set_path / f"part-{rank}.json") for rank in range(self.world)]
        notes = [part.get("notes") for part in parts if part is not None]
        return [
            {name: value for name, value in own.items() if isinstance(value, (int, float))}
            for own in notes
            if isinstance(own, dict)
        ]

    def _delete_old(self) -> None:
        """Keep the two newest complete sets; delete everything older, complete or not."""
        sets = [candidate for candidate in self._sets() if candidate.token <= self._token]
        if len(sets) < KEPT:
            return
        oldest = (sets[KEPT - 1].token, sets[KEPT - 1].step)
        for token, attempt in self._attempts():
            for path in entries(attempt):
                step = re.fullmatch(r"step-(\d{1,18})", path.name)
                if step is not None and (token, int(step.group(1))) < oldest:
                    _remove(path)
            if token < oldest[0]:
                with contextlib.suppress(OSError):
                    attempt.rmdir()

    def _clear_after(self, candidate: CompleteSet | None) -> None:
        """Delete the sets after the one to resume from: outside Gavel, a restarted script saves those steps again."""
        for path in entries(self.root / str(self._token)):
            if candidate is None or candidate.token != self._token or path.name > candidate.path.name:
                _remove(path)

    def _make_set(self, step: int) -> Path:
        """Make the directory of a set, unless another rank has made it, and return its path."""
        set_path = self._set_path(step)
        atomic.make_directory(set_path)
        return set_path

    def _set_path(self, step: int) -> Path:
        return self.root / str(self._token) / f"step-{step:012d}"

    def _poll(self, wait_s: float) -> Iterator[None]:
        """Yield at growing intervals for `wait_s`."""
        until_s = time.monotonic() + wait_s
        pause_s = POLL_S
        while True:
            yield
            if time.monotonic() >= until_s:
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)


def store_of_process(directory: str | os.PathLike[str] | None) -> Store:
    """Return the store of this process: in its job's checkpoint directory, or else in `directory`."""
    run = run_of()
    root = (os.environ.get("GAVEL_CHECKPOINT_DIR") if run is not None else None) or directory
    if root is None:
        raise CheckpointError(
            "no directory: outside Gavel, pass one, as in TorchCheckpoint('checkpoints', …)"
        )
    return Store(Path(root).absolute(), None if run is None else token_of_run(run), *ranks_of())


def token_of_run(run: Run) -> Token:
    """Return the token of a run's attempt."""
    return Token(run.epoch, int(run.lease) if run.lease.isdecimal() else run.attempt)


def parse_token(name: str) -> Token | None:
    """Parse the name of an attempt's directory or claim; return None if it is the name of something else."""
    match = re.fullmatch(r"e(\d{8,18})-a(\d{8,18})", name)
    return None if match is None else Token(int(match.group(1)), int(match.group(2)))


def entries(path: Path) -> list[Path]:
    """Return the entries of a directory, sorted by name; an empty list if it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _relative_path(candidate: CompleteSet | None) -> str | None:
    return None if candidate is None else f"{candidate.token}/{candidate.path.name}"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        with atomic.open_nofollow(path) as file:
            content = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _remove(path: Path) -> None:
    """Delete a set, COMPLETE first, so that a half-deleted set does not count."""
    with contextlib.suppress(OSError):
        (path / "COMPLETE").unlink()
    shutil.rmtree(path, ignore_errors=True)
