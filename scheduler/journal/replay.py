"""Replay a journal to a state: the newest sound snapshot, then every fact after it.

Before the first lost record every fact must apply. A fact that does not apply reveals a bug: it is left out, and its
record counts as lost. After a lost record, only the parts of a fact that still fit are applied; if they break an
invariant, the state is rolled back. docs/journal-format.md gives the reasons.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar

from scheduler.core.facts import Fact
from scheduler.journal.errors import CannotReplay, Damage, DamagedJournal, NewerJournal
from scheduler.journal.record import Journal, Record, Snapshot

log = logging.getLogger(__name__)

# After a lost record: how many records are applied between two checks of the state, at least and at most.
BATCH_MIN, BATCH_MAX = 16, 1024


class State(Protocol):
    """A state that can be written as a snapshot."""

    def snapshot(self) -> bytes:
        """Encode the state."""
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A fact that, because of damage before it, was left out or applied only in part."""

    seq: int
    fact: Fact
    why: str
    # Whether applying the fact raised an error or broke an invariant.
    raised: bool = False

    def __str__(self) -> str:
        return f"record {self.seq}: {type(self.fact).__name__} {self.why}"


@dataclass(frozen=True, slots=True)
class Recovered(Generic[S]):
    """A recovered state, and how it was recovered."""

    state: S
    facts_applied: int
    # The last record that the snapshot includes; None if all records were replayed, without a snapshot.
    from_snapshot: int | None
    # All damage found, even damage that does not affect the state.
    damage: tuple[Damage, ...]
    skipped: tuple[Skipped, ...]
    # The number of lost records that the state depends on; if it is 0, the state is exact.
    lost_records: int
    # Facts that do not apply although nothing before them is lost: a bug.
    failed_facts: tuple[Fact, ...] = ()

    def report(self) -> list[str]:
        """Return a line for each damage and each skipped fact."""
        return [*(str(damage) for damage in self.damage), *(str(skipped) for skipped in self.skipped)]


@dataclass(frozen=True, slots=True)
class Rules(Generic[S]):
    """The functions that turn facts into a state."""

    make: Callable[[], S]
    restore: Callable[[bytes], S]
    apply: Callable[[S, float, Fact], None]
    # Raises an error if the state breaks an invariant.
    check: Callable[[S], object] = lambda state: None
    # After lost records: returns what to apply in place of a fact, usually the fact without its parts about unknown
    # jobs, leases or nodes.
    surviving_facts: Callable[[S, float, Fact], Sequence[Fact]] = lambda state, now_s, fact: (fact,)
    # Returns the time and the fact to append after this number of lost records. The fact skips all ids that they may
    # have used.
    loss_fact: Callable[[S, int], tuple[float, Fact]] | None = None


def recover(journal: Journal, rules: Rules[S], *, strict: bool = False) -> Recovered[S]:
    """Recover the state from a journal. Damage raises an error only if `strict`; otherwise see `Recovered.damage`.

    If records are lost, a fact with the number of lost records is appended, so that the ids in them are never reused.
    After damage, a snapshot of the recovered state is written, so that the next start need not repeat the recovery.
    """
    damage: list[Damage] = []
    # The record of the first fact that does not apply although nothing before it is lost; 0: none.
    failed_seq = 0
    with no_garbage_collection():
        state, start = _from_snapshot(journal, rules, damage)
        replay = _Replay(rules, state)
        after = 0 if start is None else start
        stream = journal.scan(after)
        for item in stream:
            if isinstance(item, Damage):
                damage.append(item)
                if strict:
                    raise DamagedJournal(f"{item}; recovery without 'strict' continues after it", item)
                break
            try:
                replay.apply(item)
            except CannotReplay as error:
                if strict:
                    raise
                log.error("%(error)s", {"error": error}, exc_info=error)
                replay.state, failed_seq = _state_before(journal, rules, item.seq), item.seq
                stream = chain((item,), stream)
                break
        if failed_seq or any(entry.lost for entry in damage):
            replay.apply_after_loss(_collect_damage(stream, damage))
        lost = sum(entry.lost for entry in damage)
        failed = [skipped for skipped in replay.skipped if skipped.raised and failed_seq]
        lost += len({skipped.seq for skipped in failed})
    if lost and rules.loss_fact is not None:
        now_s, fact = rules.loss_fact(replay.state, lost)
        rules.apply(replay.state, now_s, fact)
        if not journal.read_only:
            # Append the fact before the snapshot is written, so that the snapshot includes it.
            journal.append(now_s, [fact])
    if (damage or lost) and not journal.read_only:
        journal.set_aside([entry for entry in damage if not entry.is_quarantined])
        journal.write_snapshot(journal.last_seq, replay.state.snapshot())
    return Recovered(
        replay.state,
        replay.facts_applied,
        start,
        tuple(damage),
        tuple(replay.skipped),
        lost,
        tuple(skipped.fact for skipped in failed),
    )


def _state_before(journal: Journal, rules: Rules[S], seq: int) -> S:
    """Rebuild the state before record `seq`, which was applied only in part."""
    state, start = _from_snapshot(journal, rules, [])
    replay = _Replay(rules, state)
    for item in journal.scan(0 if start is None else start):
        if isinstance(item, Damage) or item.seq >= seq:
            break
        replay.apply(item)
    return replay.state


def _from_snapshot(journal: Journal, rules: Rules[S], damage: list[Damage]) -> tuple[S, int | None]:
    """Return the state of the newest sound snapshot and the number of its last record, or an empty state and None.

    Damaged snapshots are added to `damage`.
    """
    for item in journal.snapshots():
        if isinstance(item, Damage):
            damage.append(item)
            continue
        state = _restored(item, rules, damage)
        if state is not None:
            return state, item.seq
    return rules.make(), None


def _restored(snapshot: Snapshot, rules: Rules[S], damage: list[Damage]) -> S | None:
    try:
        return rules.restore(snapshot.payload)
    except NewerJournal:
        raise
    # After any other error, an older snapshot or the records lead to the same state.
    except Exception as error:
        why = f"it cannot be restored: {error!r}"
        damage.append(Damage(snapshot.seq, snapshot.seq, why, "snapshot", snapshot.payload))
        return None


def _collect_damage(stream: Iterable[Record | Damage], damage: list[Damage]) -> Iterator[Record]:
    """Yield the records of a stream, and add its damage to `damage`."""
    for item in stream:
        if isinstance(item, Damage):
            damage.append(item)
        else:
            yield item


class _Replay(Generic[S]):
    """A state to which records are applied."""

    def __init__(self, rules: Rules[S], state: S) -> None:
        self.rules = rules
        self.state = state
        self.facts_applied = 0
        self.skipped: list[Skipped] = []

    def apply(self, record: Record) -> None:
        """Apply a record before which no record is lost."""
        seq, now_s, facts = record
        apply, state = self.rules.apply, self.state
        for fact in facts:
            try:
                apply(state, now_s, fact)
            except Exception as error:
                raise CannotReplay(
                    f"record {seq}: {type(fact).__name__} does not apply to the state before it ({error!r}), "
                    "and nothing before it is damaged: a bug; keep a copy of the journal and report it"
                ) from error
        self.facts_applied += len(facts)

    def apply_after_loss(self, records: Iterator[Record]) -> None:
        """Apply the records after a lost record, in batches; if a batch fails, apply its records one by one."""
        try:
            self.rules.check(self.state)
        except Exception as error:
            # From here on, check no invariant: if one is already broken, every later fact would be left out.
            log.warning("the state breaks an invariant before the first record in doubt: %s", error)
            self.rules = replace(self.rules, check=lambda state: None)
        batch_size = BATCH_MIN
        while True:
            batch = list(islice(records, batch_size))
            if not batch:
                return
            before, applied, skipped = self.state.snapshot(), self.facts_applied, len(self.skipped)
            try:
                for record in batch:
                    for fact in record.facts:
                        self._fit(record, fact)
                self.rules.check(self.state)
                batch_size = min(2 * batch_size, BATCH_MAX)
            except Exception:
                # Apply the records of the batch one by one to find the facts that fail.
                self.state, self.facts_applied = self.rules.restore(before), applied
                del self.skipped[skipped:]
                for record in batch:
                    self._apply_carefully(record)
                batch_size = BATCH_MIN

    def _fit(self, record: Record, fact: Fact) -> None:
        """Apply the parts of a fact that fit; unless they are the whole fact, add it to `skipped`."""
        surviving = self.rules.surviving_facts(self.state, record.now_s, fact)
        if len(surviving) != 1 or surviving[0] != fact:
            kept = [type(part).__name__ for part in surviving]
            why = (
                f"is applied as {', '.join(kept)}, without its lost parts"
                if kept
                else "is about lost things only"
            )
            self.skipped.append(Skipped(record.seq, fact, why))
        for part in surviving:
            self.rules.apply(self.state, record.now_s, part)
        self.facts_applied += 1 if surviving else 0

    def _apply_carefully(self, record: Record) -> None:
        """Apply a record as a whole or, if that fails, fact by fact, skipping each fact that fails."""
        if len(record.facts) > 1 and self._try(record, record.facts) is None:
            return
        for fact in record.facts:
            error = self._try(record, [fact])
            if error is not None:
                why = f"does not fit: {_reason(error)}"
                self.skipped.append(Skipped(record.seq, fact, why, raised=True))

    def _try(self, record: Record, facts: Sequence[Fact]) -> Exception | None:
        """Apply facts and return None, or roll the state back and return the error."""
        before, applied, skipped = self.state.snapshot(), self.facts_applied, len(self.skipped)
        try:
            for fact in facts:
                self._fit(record, fact)
            self.rules.check(self.state)
        except Exception as error:
            self.state, self.facts_applied = self.rules.restore(before), applied
            del self.skipped[skipped:]
            return error
        return None


def _reason(error: Exception) -> str:
    return f"{error} is unknown" if isinstance(error, KeyError) else f"{error}" or repr(error)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in this block: searching the millions of objects of a replay for cycles is slow."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
