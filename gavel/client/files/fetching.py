"""A fetch of files: what is wanted from which node, the next call to make, and where each piece goes. No network.

The scheduler and the nodes are not trusted with the local disk: each path is checked here, too, and no file becomes
larger than the size that was sent before its content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from gavel.client import calls
from gavel.client.calls import Call
from gavel.client.errors import Invalid, ServerError
from gavel.client.files.local import CannotPlace, LocalFolder, LocalPart
from gavel.client.results.files import FileEntry, FileList, FilePiece
from protos.gavel.v1.limits import FETCHED_FILES_MAX, is_plain_path, path_fault

if TYPE_CHECKING:
    from gavel.client.jobs.packing import Progress


class Listing:
    """A list of files that begins again after a lost connection."""

    def __init__(self, job: str, paths: Sequence[str], attempt: int, checkpoints: bool) -> None:
        """Raises Invalid if a path leads out of the directory."""
        if isinstance(paths, str):
            paths = (paths,)
        for path in paths:
            if fault := path_fault(path):
                raise Invalid(f"paths: '{path}' {fault}", field="paths")
        self._call = calls.list_files(job=job, paths=paths, attempt=attempt, checkpoints=checkpoints)
        self._parts: list[FileList] = []

    def call(self) -> Call[FileList]:
        """Return the call for the next connection."""
        self._parts = []
        return self._call

    def take(self, part: FileList) -> None:
        """Take a part of the list."""
        self._parts.append(part)

    @property
    def lists(self) -> tuple[FileList, ...]:
        """The complete list of each node."""
        parts: dict[str, list[FileList]] = {}
        for part in self._parts:
            parts.setdefault(part.node, []).append(part)
        return tuple(
            FileList(
                node,
                lists[0].attempt,
                next((each.places for each in lists if each.places is not None), None),
                tuple(file for each in lists for file in each.files),
                tuple(line for each in lists for line in each.notices),
                tuple(path for each in lists for path in each.unmatched),
                next((each.missing for each in lists if each.missing), ""),
            )
            for node, lists in parts.items()
        )


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch. It is complete if there are no problems."""

    folder: str
    # Paths below `folder`: the files that were fetched, and those that were there already.
    fetched: tuple[str, ...]
    present: tuple[str, ...]
    size_bytes: int  # received
    # The files that are missing, and why.
    problems: tuple[str, ...]
    # What was left out on purpose.
    notices: tuple[str, ...]


class _Wanted(NamedTuple):
    """A file to fetch: where it is, and its path below the local directory."""

    node: str
    entry: FileEntry
    path: str


class Fetching:
    """A fetch into a local directory. Use it in a `with` block: `call` and `take` in turns until `is_over`."""

    def __init__(
        self,
        job: str,
        lists: Sequence[FileList],
        folder: LocalFolder,
        *,
        checkpoints: bool = False,
        force: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._job, self._attempt = job, max((each.attempt for each in lists), default=0)
        self._checkpoints, self._folder, self._progress = checkpoints, folder, progress
        self._fetched: list[str] = []
        self._present: list[str] = []
        self._received_bytes = 0
        # Lines about files that are missing, and about those left out on purpose.
        self._problems, unmatched_patterns = _problems(lists, checkpoints)
        self._notices = unmatched_patterns + left_out(lists)
        self._queue: deque[_Wanted] = deque()
        self._part: LocalPart | None = None
        # The files of the present call, and how many of them have ended.
        self._batch: list[_Wanted] = []
        self._ended = 0
        # The size of the files that are here or have ended.
        self._settled_bytes = 0
        for wanted in self._placed(lists):
            self._plan(wanted, force)
        self._total_bytes = self._settled_bytes + sum(wanted.entry.size_bytes for wanted in self._queue)

    def _placed(self, lists: Sequence[FileList]) -> list[_Wanted]:
        """Return the files with their local paths: below the name of the node if two nodes have different ones.

        Files with the same path, size and time are the same file, seen by several nodes.
        """
        first: dict[str, _Wanted] = {}
        different: list[_Wanted] = []
        for each in lists:
            for entry in each.files:
                wanted = _Wanted(each.node, entry, entry.path)
                same = first.setdefault(entry.path, wanted)
                if same is not wanted and same.entry != entry:
                    different.append(wanted)
        if not different:
            return list(first.values())
        return [
            _Wanted(each.node, entry, f"{each.node}/{entry.path}") for each in lists for entry in each.files
        ]

    def _plan(self, wanted: _Wanted, force: bool) -> None:
        """Queue a file, unless it is here already or cannot be placed."""
        if not is_plain_path(wanted.path):
            self._problems.append(f"{wanted.path!r} is no path within the directory: it is not fetched")
            return
        try:
            state = self._folder.state(wanted.path, wanted.entry)
        except (CannotPlace, OSError) as why:
            self._problems.append(_words(why, wanted.path))
            return
        if state == "present":
            self._present.append(wanted.path)
            self._settled_bytes += wanted.entry.size_bytes
        elif state == "different" and not force:
            path = self._folder.path / wanted.path
            self._problems.append(
                f"{path} exists and differs: it is kept; --force (force=True) overwrites it"
            )
        else:
            self._queue.append(wanted)

    @property
    def is_over(self) -> bool:
        """Whether no file is left to fetch."""
        return not self._queue

    @property
    def result(self) -> Fetched:
        """The files that were fetched so far."""
        return Fetched(
            str(self._folder.path),
            tuple(self._fetched),
            tuple(self._present),
            self._received_bytes,
            tuple(self._problems),
            tuple(self._notices),
        )

    def call(self) -> Call[FilePiece]:
        """Return the call for the next files of one node, from where each was left."""
        self._close_part(complete=False)
        node = self._queue[0].node
        self._batch, self._ended = [], 0
        for wanted in self._queue:
            if wanted.node != node or len(self._batch) == FETCHED_FILES_MAX:
                break
            self._batch.append(wanted)
        files = [
            {
                "path": wanted.entry.path,
                "offset": self._folder.part_bytes(wanted.path, wanted.entry),
                "size_bytes": wanted.entry.size_bytes,
                "modified_ns": wanted.entry.modified_ns,
            }
            for wanted in self._batch
        ]
        return calls.fetch_files(
            job=self._job, attempt=self._attempt, checkpoints=self._checkpoints, node=node, files=files
        )

    def take(self, piece: FilePiece) -> None:
        """Write a piece. Raises ServerError if it is not the next one, and OSError if it cannot be written."""
        if piece.index != self._ended or self._ended >= len(self._batch):
            raise ServerError("the scheduler sent a file that was not asked for", reason="internal")
        wanted = self._batch[self._ended]
        if piece.file is not None:
            self._begin(wanted, piece.file, piece.offset)
        if piece.data and self._part is not None:
            self._write(piece)
        if piece.end:
            self._end(wanted, piece.problem)

    def end_of_call(self) -> None:
        """Check, at the end of a stream, that all files of the call have ended."""
        if self._ended < len(self._batch):
            raise ServerError("the scheduler sent less than was asked for", reason="internal")

    def _begin(self, wanted: _Wanted, entry: FileEntry, offset: int) -> None:
        if offset not in (0, self._folder.part_bytes(wanted.path, wanted.entry)) or self._part is not None:
            raise ServerError("the scheduler sent a file from a wrong position", reason="internal")
        self._entry = entry
        try:
            self._part = self._folder.open_part(wanted.path, entry, offset)
        except CannotPlace as why:
            self._problems.append(str(why))

    def _write(self, piece: FilePiece) -> None:
        assert self._part is not None
        end = self._part.size_bytes + len(piece.data)
        if piece.offset != self._part.size_bytes or end > self._entry.size_bytes:
            raise ServerError("the scheduler sent a file from a wrong position", reason="internal")
        self._part.write(piece.data)
        self._received_bytes += len(piece.data)
        if self._progress is not None:
            done = self._settled_bytes + self._part.size_bytes
            self._progress("fetching", min(done, self._total_bytes), self._total_bytes)

    def _end(self, wanted: _Wanted, problem: str) -> None:
        if self._part is not None:
            is_complete = self._part.size_bytes == self._entry.size_bytes
            self._close_part(complete=is_complete)
            if is_complete:
                self._fetched.append(wanted.path)
            where = f"{wanted.path}: {problem or 'it ended early'}"
            if not is_complete:
                self._problems.append(f"{where}; fetch it again")
            elif problem:
                self._notices.append(where)
        elif problem:
            self._problems.append(f"{wanted.path}: {problem}")
        self._ended += 1
        self._settled_bytes += wanted.entry.size_bytes
        self._queue.popleft()

    def _close_part(self, *, complete: bool) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close(complete=complete)

    def __enter__(self) -> Fetching:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_part(complete=False)


def left_out(lists: Sequence[FileList]) -> list[str]:
    """Return a line for each thing that nodes leave out; with the node, if there are several."""
    nodes = [f"{each.node}: " if len(lists) > 1 else "" for each in lists]
    return [
        f"{node}{line}: left out" for node, each in zip(nodes, lists, strict=True) for line in each.notices
    ]


def _problems(lists: Sequence[FileList], checkpoints: bool) -> tuple[list[str], list[str]]:
    """Return a line for each node and path that is missing, and one for each pattern that matches nothing.

    If there are no files at all, such a pattern is a problem, too.
    """
    problems = [f"{each.node} {each.missing}: its files are missing" for each in lists if each.missing]
    answers = [set(each.unmatched) for each in lists if not each.missing]
    unmatched = sorted(set.intersection(*answers)) if answers else []
    has_files = any(each.files for each in lists)
    patterns = [path for path in unmatched if has_files and set(path) & set("*?[")]
    whole = "there are no checkpoints" if checkpoints else "there are no files"
    problems += [
        whole if path == "." else f"there is no file '{path}'" for path in unmatched if path not in patterns
    ]
    return problems, [f"no file matches '{path}'" for path in patterns]


def _words(why: Exception, path: str) -> str:
    return f"{path}: {(why.strerror or str(why)).lower()}" if isinstance(why, OSError) else str(why)
