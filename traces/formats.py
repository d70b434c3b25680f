"""Read and write traces of any known format, recognised by its content."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces.documents import header_of, read_text
from traces.errors import TraceError, UnreadableFile
from traces.intake import Intake
from traces.readers import importers, original, tidy_csv
from traces.throughputs import Throughputs
from traces.trace import Trace, TraceJob

OPEN_END = "the last line has no line end: if the file was cut off within a number, that number is wrong"


def read_trace(
    path: str | Path,
    *,
    repair: bool = False,
    throughputs: Throughputs | None = None,
    subtrace: str | None = None,
) -> Trace:
    """Read a trace in our own CSV format, in that of original.py or in that of importers.py; also compressed by gzip.

    With `throughputs`, the trace has to fit that table. Small faults are refused; with `repair` they are repaired, and
    counted in the notes of the trace (see intake.py). `subtrace` chooses one trace if the file holds several.
    """
    path = Path(path)
    text = read_text(path)
    intake = Intake(str(path), repair=repair, throughputs=throughputs)
    try:
        reader = _reader_of(text)
        if reader is importers:
            importers.read(path, text, intake, subtrace)
        elif reader is not None:
            reader.read(path, text, intake)
        else:
            raise UnreadableFile(
                "is not a trace: the first line is neither a header nor a job",
                hint="see docs/trace-format.md",
            )
        if not intake.jobs:
            raise UnreadableFile(
                "has no jobs", hint="a header without lines is not a workload; was it written to the end?"
            )
        return intake.trace(*(() if text.endswith(("\n", "\r")) else (OPEN_END,)))
    except TraceError as fault:
        raise fault.at(str(path)) from None


def write_trace(path: str | Path, jobs: Iterable[TraceJob]) -> None:
    """Write a trace: in the format of original.py if the name ends in `.trace`, else in our own CSV format."""
    path = Path(path)
    (original if path.suffix == ".trace" else tidy_csv).write(path, jobs)


def is_foreign(path: str | Path) -> bool:
    """Return whether the file is a trace of another system, whose worker types our throughput table may lack."""
    return _reader_of(read_text(Path(path))) in (original, importers)


def _reader_of(text: str) -> Any:
    """Return the module that reads this format; None if it is not a trace."""
    header = header_of(text)
    if text.lstrip("\r\n").split("\n", 1)[0].count("\t") >= original.TABS_MIN:
        return original
    if _shared(header, importers.LAYOUT.needed) > _shared(header, tidy_csv.NEEDED):
        return importers
    return tidy_csv if _shared(header, tidy_csv.NEEDED) >= 2 else None


def _shared(header: list[str], columns: tuple[str, ...]) -> int:
    return len(set(header) & set(columns))
