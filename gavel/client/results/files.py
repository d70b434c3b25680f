"""Files of jobs: what nodes list, and the pieces that they send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a job. `path` is relative to the directory that was listed."""

    path: str
    size_bytes: int
    modified_ns: int  # since 1970
    executable: bool


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """The directories of an attempt on a node. A path is empty if there is no such directory any more."""

    workdir: str
    # Where the outputs are kept after the work directory was removed.
    outputs: str
    checkpoints: str
    logs: str
    # Of the logs and of an uploaded work directory; None while the attempt runs.
    kept_until: datetime | None
    # None for outputs in the job's own `workdir`, where they stay.
    outputs_kept_until: datetime | None


@dataclass(frozen=True, slots=True)
class FileList:
    """The files of one node."""

    node: str
    attempt: int
    # None if the node could not be asked.
    places: FilePlaces | None
    files: tuple[FileEntry, ...]
    # What is left out, and why.
    notices: tuple[str, ...]
    # The requested paths of which the node has nothing.
    unmatched: tuple[str, ...]
    # Why the files cannot be listed; empty if they can.
    missing: str


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A piece of one of the files that a call requested."""

    # The position of the file in the request.
    index: int
    # Only in the first piece of a file.
    file: FileEntry | None
    offset: int  # of `data`, in bytes
    data: bytes
    end: bool
    # With `end`: what is wrong with the file; empty if nothing is.
    problem: str
