"""The checks of `gavel fsck`: whether a data directory is sound. They change nothing.

The journal is read, replayed and checked against the scheduler's invariants. `journal.history` then checks with
independent code whether the same records keep the scheduler's promises, such as that a job ends only once. Finally, a
round is planned on the resulting state.
"""

from __future__ import annotations

import logging
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.invariants import check
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import Damage, JournalBusy, JournalError, NewerJournal
from scheduler.journal.history import History
from scheduler.journal.record import Record, Snapshot
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.replay import Recovered
from scheduler.journal.store import SqliteJournal
from scheduler.live.data.backup import DATABASES, JOURNAL
from scheduler.live.data.findings import Finding
from scheduler.live.rescue.blame import blame, named_in, next_round_s, plan_a_round
from scheduler.live.troubles import short
from scheduler.model.errors import InvariantBroken

log = logging.getLogger(__name__)

# How many facts are applied between two checks of the state, and how many broken promises are reported.
CHECK_FACTS, BROKEN_MAX = 64, 20
KEEP = "keep a copy of the directory and report the error; an older backup may be free of it"


def check_data_directory(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each check of a data directory."""
    try:
        (folder / JOURNAL).stat()
    except (FileNotFoundError, NotADirectoryError):
        yield Finding("bad", f"there is no {JOURNAL} in {folder}", "name the data directory of a scheduler")
        return
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        yield Finding("bad", f"{folder} cannot be read: {why}", "run this as its owner")
        return
    yield from _check_modes(folder)
    for name in DATABASES:
        if (folder / name).is_file():
            yield _check_database(folder / name)
    yield from _check_journal(folder / JOURNAL)


def _check_modes(folder: Path) -> Iterator[Finding]:
    secret = [folder, *(folder / "tls").glob("*.key"), *folder.glob("access.db*"), *folder.glob("*.token")]
    open_to_others = [path for path in secret if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    for path in open_to_others:
        mode = "700" if path.is_dir() else "600"
        yield Finding("bad", f"others on this machine can read {path}", f"chmod {mode} {path}")
    if not open_to_others:
        yield Finding("ok", "keys and tokens are readable for their owner alone")


def _check_database(path: Path) -> Finding:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
            faults = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
    except sqlite3.OperationalError as error:
        return Finding("note", f"{path.name} was not checked: {error}", "stop the daemon, then check again")
    except sqlite3.DatabaseError as error:
        faults = [str(error)]
    if faults == ["ok"]:
        return Finding("ok", f"{path.name} is sound")
    return Finding("bad", f"{path.name} is damaged: {faults[0]}", "restore a backup, or move the file away")


def _check_journal(path: Path) -> Iterator[Finding]:
    try:
        with SqliteJournal(path, read_only=True) as journal:
            if journal.repair_reason:
                yield Finding(
                    "bad",
                    f"the journal's file is damaged: {journal.repair_reason}",
                    "the daemon mends it at its next start, and keeps the damaged file beside it",
                )
            recovered = recover_scheduler(journal)
            yield from _check_records(journal, recovered)
            yield from _check_promises(journal, bool(recovered.failed_facts))
            yield from _check_planning(recovered.state)
    except JournalBusy as error:
        yield Finding("bad", f"the journal was not checked: {error}", "stop the daemon, then check again")
    except NewerJournal as error:
        yield Finding("bad", str(error), "check it with the release that wrote it")
    except JournalError as error:
        yield Finding("bad", str(error), "restore a backup")


def _check_records(journal: SqliteJournal, recovered: Recovered[SchedulerState]) -> Iterator[Finding]:
    for line in recovered.report():
        yield Finding("bad", line, "the facts that still apply are kept; a backup may have the rest")
    if recovered.failed_facts:
        suspects = named_in(recovered.state, recovered.failed_facts)
        yield Finding(
            "bad",
            f"{len(recovered.failed_facts)} facts cannot be applied, though nothing before them is damaged",
            f"the daemon starts without them and {suspects.measures}; {KEEP}" if suspects else KEEP,
        )
    if recovered.lost_records:
        yield Finding("bad", f"{recovered.lost_records} records that are needed are lost", "restore a backup")
    state = recovered.state
    yield Finding(
        "ok",
        f"{journal.last_seq} records add up to {len(state.jobs)} jobs and {len(state.nodes)} nodes "
        f"(epoch {state.epoch})",
    )


def _check_promises(journal: SqliteJournal, reported: bool) -> Iterator[Finding]:
    """Check the promises of the scheduler on all records after the oldest sound snapshot.

    `reported`: whether an earlier finding reports facts that cannot be applied.
    """
    beginning = _beginning(journal)
    if beginning is None:
        yield Finding("note", "promises were not checked: no snapshot is sound", "restore a backup")
        return
    after, state = beginning
    history, facts, fault = History(state), 0, ""
    for record in journal.scan(after):
        if isinstance(record, Damage):
            yield Finding("note", "promises were checked up to the damage only")
            break
        for fact in record.facts:
            history.check(record.now_s, fact)
        facts += len(record.facts)
        fault = fault or _record_fault(state, record, check_state=facts % CHECK_FACTS < len(record.facts))
    fault = fault or _state_fault(state)
    if fault and not reported:
        yield Finding("bad", fault, KEEP)
    for broken in history.broken[:BROKEN_MAX]:
        story = "; ".join(broken.story[-6:])
        of_job = f" (job {broken.job}: {story})" if broken.job else ""
        yield Finding("bad", f"a promise is broken: {broken}{of_job}", KEEP)
    if not history.broken and not fault:
        yield Finding("ok", f"{facts} facts keep every promise")


def _check_planning(state: SchedulerState) -> Iterator[Finding]:
    """Check that a daemon could start from this state and plan a round."""
    snapshot, now_s = state.snapshot(), next_round_s(state, state.now_s)
    try:
        plan_a_round(Core(SchedulerState.restore(snapshot)), now_s)
    except Exception as error:
        # Any of these errors would occur in the daemon, too.
        log.debug("planning a round failed", exc_info=True)
        guilty = blame(snapshot, lambda core: plan_a_round(core, now_s))
        because = f", because of {guilty}" if guilty else ""
        remedy = f"at this error, the daemon {guilty.measures}; cancel or remove it then" if guilty else KEEP
        yield Finding("bad", f"a round cannot be planned{because}: {short(error)}", remedy)
    else:
        yield Finding("ok", "a round can be planned")


def _beginning(journal: SqliteJournal) -> tuple[int, SchedulerState] | None:
    """Return the number of the record after which the check begins, and the state then; None if no state is known."""
    if "compacted" not in journal.meta:
        return 0, SchedulerState()
    sound = [snapshot for snapshot in journal.snapshots() if isinstance(snapshot, Snapshot)]
    return (sound[-1].seq, SchedulerState.restore(sound[-1].payload)) if sound else None


def _record_fault(state: SchedulerState, record: Record, check_state: bool) -> str:
    """Apply a record, and return its fault or "". `check_state`: check the invariants of the state, too."""
    for fact in record.facts:
        try:
            apply(state, record.now_s, fact)
        except Exception as error:
            # A damaged or forged fact may raise anything.
            return f"record {record.seq}: {type(fact).__name__} does not fit the facts before it ({error!r})"
    return _state_fault(state) if check_state else ""


def _state_fault(state: SchedulerState) -> str:
    try:
        check(state)
    except InvariantBroken as error:
        return " ".join(str(error).split())[:1000]
    return ""
