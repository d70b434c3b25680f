"""The work directories that jobs upload: which one, whether it can be, and its package while it is sent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gavel.client.jobs.errors import objection
from gavel.client.jobs.spec import JobSpec

if TYPE_CHECKING:
    from gavel.client.jobs.packing import Package, Progress

_INTERPRETER = re.compile(r"python[0-9.]*|bash|sh")


class Uploads:
    """Packs the work directories of jobs with uploads. `specs` are the jobs to submit, which name the packages."""

    def __init__(self, specs: Sequence[JobSpec], progress: Progress | None = None) -> None:
        self._files, self._progress = ExitStack(), progress
        # The packages, by digest.
        self.packages: dict[str, Package] = {}
        packed: dict[Path, Package] = {}
        ready = []
        try:
            for spec in specs:
                if not spec.upload:
                    ready.append(spec)
                    continue
                folder = work_directory(spec)
                check_script(spec, folder)
                package = packed[folder] = packed.get(folder) or self._packed(spec, folder)
                self.packages[package.digest] = package
                ready.append(replace(spec, upload=False, workdir="", package=package.digest))
        except BaseException:
            self._files.close()
            raise
        self.specs: tuple[JobSpec, ...] = tuple(ready)

    def _packed(self, spec: JobSpec, folder: Path) -> Package:
        # Imported only for a job with an upload, because most jobs have none.
        import tempfile

        from gavel.client.jobs.packing import TooLarge, pack

        file = self._files.enter_context(tempfile.TemporaryFile(prefix="gavel-"))  # noqa: SIM115
        try:
            return pack(folder, file, self._progress)
        except TooLarge as error:
            raise objection(spec, "workdir", f"{folder}: {error}", "too_large") from None

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a package in pieces."""
        from gavel.client.jobs.packing import PIECE_BYTES

        package = self.packages[digest]
        package.file.seek(0)
        done = 0
        while piece := package.file.read(PIECE_BYTES):
            yield piece
            done += len(piece)
            if self._progress is not None:
                self._progress("sending", done, package.size_bytes)

    def __enter__(self) -> Uploads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()


def work_directory(spec: JobSpec) -> Path:
    """Return the local directory that a job uploads. Raises InvalidJob if there is none."""
    folder = Path(spec.workdir or ".").expanduser().resolve()
    if not folder.is_dir():
        raise objection(spec, "workdir", f"there is no directory {folder} here to upload")
    if folder in (Path(folder.anchor), Path.home().resolve()):
        extent = "the whole file system" if folder == Path(folder.anchor) else "your whole home directory"
        raise objection(
            spec,
            "workdir",
            f"{folder} is {extent}: put the files that the job needs into a separate directory",
        )
    return folder


def check_script(spec: JobSpec, folder: Path) -> None:
    """Raise InvalidJob if the program or script of a command should be in the uploaded directory but is not.

    It refuses only what is surely a mistake: with `setup`, the file may be created on the node, and other programs may
    take arguments that are not files.
    """
    if spec.setup or not spec.command:
        return
    program, *arguments = spec.command
    script = program
    if (
        _INTERPRETER.fullmatch(os.path.basename(program))
        and arguments
        and arguments[0].endswith((".py", ".sh"))
    ):
        script = arguments[0]
    elif "/" not in program:
        return
    if not os.path.isabs(script) and not (folder / script).exists():
        raise objection(spec, "command", f"there is no {script} in {folder}, the directory to upload")


def without_uploads(specs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Return the jobs for a preview: nothing is packed or sent, but the directories must exist."""
    for spec in specs:
        if spec.upload:
            check_script(spec, work_directory(spec))
    return tuple(replace(spec, upload=False, workdir="") if spec.upload else spec for spec in specs)
