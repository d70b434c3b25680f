"""Answer requests for the files of a job: where they lie on this node, which there are, and what they contain."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from protos.gavel.v1.limits import path_fault
from protos.gavel.v1.plain import plain
from worker_agent.files.kept_outputs import KeptOutputs, work_place
from worker_agent.files.process import Place, frames
from worker_agent.node.users import UserError, Users
from worker_agent.shim.run_directory import EXIT, LOGS, START, RunDirectory, directory_name

# Zeros and empty texts have to be sent to the process that reads files, too.
_NOTHING_WANTED = {"offset": 0, "size_bytes": 0, "modified_ns": 0}


class _Places(NamedTuple):
    """The directories of an attempt on this node, and until when they are kept."""

    checkpoints: Place
    work: Place | None = None
    outputs: Place | None = None
    logs: str = ""
    kept_until_s: float = 0.0
    outputs_kept_until_s: float = 0.0

    def to_wire(self) -> jobs_pb2.FilePlaces:
        """Return the message for users."""
        wire = jobs_pb2.FilePlaces(
            workdir=self.work.path if self.work else "",
            outputs=self.outputs.path if self.outputs else "",
            checkpoints=self.checkpoints.path,
            logs=self.logs,
        )
        if self.kept_until_s:
            wire.kept_until.CopyFrom(Timestamp(seconds=int(self.kept_until_s)))
        if self.outputs_kept_until_s:
            wire.outputs_kept_until.CopyFrom(Timestamp(seconds=int(self.outputs_kept_until_s)))
        return wire


class JobFiles:
    """The files of all jobs on this node. `keep_s`: how long run directories are kept after the end of a run."""

    def __init__(
        self, runs: Path, outputs: KeptOutputs, users: Users, checkpoints: Path, keep_s: float
    ) -> None:
        self._runs, self._outputs, self._users = runs, outputs, users
        self._checkpoints, self._keep_s = checkpoints, keep_s

    async def read(self, wanted: pb.FilesWanted) -> AsyncIterator[pb.SentFiles]:
        """Yield the answer to a request. Raises OSError or ValueError with the reason if there is none."""
        is_list = wanted.HasField("list")
        request = wanted.list if is_list else wanted.fetch
        paths = list(wanted.list.paths) or [file.path for file in wanted.fetch.files]
        for path in paths:
            if fault := path_fault(path):
                raise ValueError(f"{path[:200]!r} {fault}")
        places = self._places(wanted, request.job, request.attempt)
        place = places.checkpoints if request.checkpoints else places.work or places.outputs
        if is_list:
            unmatched = [] if place else paths
            places_wire = places.to_wire()
            yield pb.SentFiles(
                list=jobs_pb2.FileList(attempt=request.attempt, places=places_wire, unmatched=unmatched)
            )
        if not paths or (is_list and place is None):
            return
        if place is None:
            raise ValueError(f"has no files of attempt {request.attempt} any more")
        try:
            account = self._users.account(wanted.user)
        except UserError as error:
            raise ValueError(str(error)) from None
        argument = paths if is_list else [_NOTHING_WANTED | plain(file) for file in wanted.fetch.files]
        async with aclosing(frames(account, place, "list" if is_list else "send", argument)) as answers:  # type: ignore[type-var]
            async for header, data in answers:
                if is_list:
                    yield pb.SentFiles(list=jobs_pb2.FileList(attempt=request.attempt, **header))
                else:
                    # A dict, because the data of a message would be copied twice more.
                    yield pb.SentFiles(piece={**header, "data": data})

    def _places(self, wanted: pb.FilesWanted, job: str, attempt: int) -> _Places:
        name = directory_name(wanted.lease)
        checkpoints = wanted.checkpoint_dir or str(self._checkpoints / directory_name(job))
        places = _Places(Place(checkpoints))
        if (kept := self._outputs.find(name, job, attempt)) is not None:
            places = places._replace(outputs=kept[0], outputs_kept_until_s=kept[1])
        try:
            directory = RunDirectory(self._runs / name)
        except OSError:
            return places
        with directory:
            start = directory.read(START, owner=os.geteuid()) or {}
            if (start.get("job"), start.get("attempt")) != (job, attempt):
                # This run is from an earlier scheduler, whose leases had the same ids, or was never begun.
                return places
            places = places._replace(logs=str(directory.path / LOGS))
            version = directory.version(EXIT)
            ended_s = version[1] / 1e9 if version else 0.0
        if ended_s:
            places = places._replace(kept_until_s=ended_s + self._keep_s)
        if start.get("outputs") and ended_s:
            places = places._replace(outputs_kept_until_s=ended_s + self._outputs.keep_s)
        if start.get("cwd") == str(directory.path):
            # A container without a work directory: the run directory itself also has files of the agent.
            return places
        if start.get("cwd"):
            own = str(start["ranks"][0]["env"]["GAVEL_CHECKPOINT_DIR"])
            places = places._replace(work=work_place(directory.path, start), checkpoints=Place(own))
        return places
