"""The audit log: who changed what, when, from where, and with what result. One JSON object per line.

A line is written before the caller receives the answer. If it cannot be written, it goes to the daemon's log and the
call continues, because the journal has the facts as well.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from google.protobuf.message import Message

from scheduler.live.access.limits import Buckets, host_of
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Caller

log = logging.getLogger(__name__)
# How many jobs of a submission are listed.
LISTED_MAX = 20

# How many lines unknown callers at one address may cause, at once and per second. With more lines, the rotation of the
# files would soon delete the lines about users.
UNKNOWN_BURST, UNKNOWN_PER_S = 100.0, 0.1


class Audit:
    """An audit log in files that are rotated by size."""

    def __init__(self, path: Path, config: PeopleConfig, clock: Callable[[], float] = time.time) -> None:
        self._path, self._config, self._clock = path, config, clock
        self._unknown_callers = Buckets(UNKNOWN_PER_S, UNKNOWN_BURST, clock)
        self._file: TextIO = self._open()

    def note(self, caller: Caller, method: str, request: object, result: str) -> None:
        """Write a line about one call and its result."""
        if not caller.user:
            if self._unknown_callers.wait_s(host_of(caller.peer)) > 0:
                return
            self._unknown_callers.take(host_of(caller.peer))
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock())),
            "user": caller.user,
            "role": caller.role.word,
            "token": caller.token,
            "from": caller.peer,
            "call": method.removeprefix("/gavel.v1."),
            "what": _summary(request),
            "result": result,
        }
        try:
            self._file.write(json.dumps(line, ensure_ascii=True) + "\n")
            self._file.flush()
            if self._file.tell() >= self._config.audit_bytes_max:
                self._rotate()
        except OSError as error:
            log.error("the audit log cannot be written (%s): %s", error, line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> TextIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self._path, flags, 0o600), "a", encoding="ascii")

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._config.audit_files - 1, 0, -1):
            older = self._name(number - 1)
            if older.exists():
                older.replace(self._name(number))
        if self._config.audit_files == 1:
            self._path.unlink()
        self._file = self._open()

    def _name(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")


def _summary(request: object) -> dict[str, Any]:
    """Return a short form of a request, without secrets."""
    if not isinstance(request, Message):
        return {}
    specs = getattr(request, "specs", None)
    if specs is not None:
        jobs = [{"name": spec.name, "user": spec.user, "gpus": spec.gpus or 1} for spec in specs[:LISTED_MAX]]
        return {"jobs": len(specs), "specs": jobs, "key": getattr(request, "idempotency_key", "")}
    summary: dict[str, Any] = {}
    for field, value in request.ListFields():
        if field.name in _SECRET:
            continue
        if isinstance(value, str | int | float | bool):
            summary[field.name] = value if not isinstance(value, str) else value[:256]
            if field.enum_type is not None and isinstance(value, int):
                constant = field.enum_type.values_by_number.get(value)
                summary[field.name] = value if constant is None else constant.name
        elif field.is_repeated:
            summary[field.name] = f"{len(value)} entries"
    return summary


_SECRET = frozenset({"token", "secret", "certificate_request_pem", "data"})
