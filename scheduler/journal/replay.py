"""Replay a journal to a state: the newest sound snapshot, then every fact after it.

Up to the first lost record every fact must apply. One that does not is a bug; it is set aside as if its record were
damaged. After the first loss, a fact is applied as far as it still fits (docs/journal-format.md says why). That is
tried on a state that can be rolled back.
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

# How many records are applied between two checks of the state.
TRY_MIN, TRY_MAX = 16, 1024


class State(Protocol):
    """A state that can be written as a snapshot."""

    def snapshot(self) -> bytes:
        """Encode the state."""
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A fact after damage that was left out, or applied only in part."""

    seq: int
    fact: Fact
    why: str
    # Whether it cannot be applied, or breaks an invariant.
    raised: bool = False

    def __str__(self) -> str:
        return f"record {self.seq}: {type(self.fact).__name__} {self.why}"


@dataclass(frozen=True, slots=True)
class Recovered(Generic[S]):
    """A recovered state, and how it was recovered."""

    state: S
    facts_applied: int
    # The record of the snapshot. None: replayed from the beginning.
    from_snapshot: int | None
    # All damage found, even in parts that were not needed.
    damage: tuple[Damage, ...]
    skipped: tuple[Skipped, ...]
    # How many of the lost records the state depends on. 0: the state is exact.
    lost_records: int
    # Facts that do not apply although nothing before them is lost: a bug.
    set_aside: tuple[Fact, ...] = ()

    def report(self) -> list[str]:
        """Describe damage and skipped facts in lines; none if all is well."""
        return [*(str(damage) for damage in self.damage), *(str(skipped) for skipped in self.skipped)]


@dataclass(frozen=True, slots=True)
class Rules(Generic[S]):
    """The functions that turn facts into a state."""

    make: Callable[[], S]
    restore: Callable[[bytes], S]
    apply: Callable[[S, float, Fact], None]
    check: Callable[[S], object] = lambda state: None  # raises on contradictions
    # The facts to apply instead of one after records were lost: without its parts about unknown things.
    fit: Callable[[S, float, Fact], Sequence[Fact]] = lambda state, now_s, fact: (fact,)
    # The fact that so many records are lost, and its time. It keeps their ids from being used again.
    lost: Callable[[S, int], tuple[float, Fact]] | None = None


def recover(journal: Journal, rules: Rules[S], *, strict: bool = False) -> Recovered[S]:
    """Recover the state from a journal. Damage raises only if `strict`; otherwise see `Recovered.damage`.

    After damage or a fact that was set aside, the journal gets a snapshot of the result, so that the next start need
    not repeat the search, and a fact with the number of lost records, so that their ids are never used again.
    """
    damage: list[Damage] = []
    in_doubt = 0  # the first doubtful record
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
                replay.state, in_doubt = _before(journal, rules, item.seq), item.seq
                stream = chain((item,), stream)
                break
        if in_doubt or any(part.lost for part in damage):
            replay.carry_on(_records(stream, damage))
        lost = sum(part.lost for part in damage)
        set_aside = [skipped for skipped in replay.skipped if skipped.raised and in_doubt]
        lost += len({skipped.seq for skipped in set_aside})
    if lost and rules.lost is not None:
        now_s, fact = rules.lost(replay.state, lost)
        rules.apply(replay.state, now_s, fact)
        if not journal.read_only:
            # Before the snapshot, so that a start from the snapshot reads this fact, too.
            journal.append(now_s, [fact])
    if (damage or lost) and not journal.read_only:
        journal.set_aside([part for part in damage if not part.known])
        journal.write_snapshot(journal.last_seq, replay.state.snapshot())
    return Recovered(
        replay.state,
        replay.facts_applied,
        start,
        tuple(damage),
        tuple(replay.skipped),
        lost,
        tuple(skipped.fact for skipped in set_aside),
    )


def _before(journal: Journal, rules: Rules[S], seq: int) -> S:
    """Rebuild the state before this record, which was applied in part."""
    state, start = _from_snapshot(journal, rules, [])
    replay = _Replay(rules, state)
    for item in journal.scan(0 if start is None else start):
        if isinstance(item, Damage) or item.seq >= seq:
            break
        replay.apply(item)
    return replay.state


def _from_snapshot(journal: Journal, rules: Rules[S], damage: list[Damage]) -> tuple[S, int | None]:
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
    # Any error at all: the records before the snapshot are there as well.
    except Exception as error:
        why = f"it cannot be restored: {error!r}"
        damage.append(Damage(snapshot.seq, snapshot.seq, why, "snapshot", snapshot.payload))
        return None


def _records(stream: Iterable[Record | Damage], damage: list[Damage]) -> Iterator[Record]:
    for item in stream:
        if isinstance(item, Damage):
            damage.append(item)
        else:
            yield item


class _Replay(Generic[S]):
    """A state while records are applied to it."""

    def __init__(self, rules: Rules[S], state: S) -> None:
        self.rules = rules
        self.state = state
        self.facts_applied = 0
        self.skipped: list[Skipped] = []

    def apply(self, record: Record) -> None:
        """Apply a record before which nothing is lost."""
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

    def carry_on(self, records: Iterator[Record]) -> None:
        """Apply the records after a hole: in batches while all is well, one by one where it is not."""
        try:
            self.rules.check(self.state)
        # An invariant that is broken already must not rule out all later facts.
        except Exception as error:
            log.warning("the state breaks an invariant before the first record in doubt: %s", error)
            self.rules = replace(self.rules, check=lambda state: None)
        several = TRY_MIN
        while True:
            batch = list(islice(records, several))
            if not batch:
                return
            before, applied, skipped = self.state.snapshot(), self.facts_applied, len(self.skipped)
            try:
                for record in batch:
                    for fact in record.facts:
                        self._fit(record, fact)
                self.rules.check(self.state)
                several = min(2 * several, TRY_MAX)
            # The cause is found fact by fact.
            except Exception:
                self.state, self.facts_applied = self.rules.restore(before), applied
                del self.skipped[skipped:]
                for record in batch:
                    self._careful(record)
                several = TRY_MIN

    def _fit(self, record: Record, fact: Fact) -> None:
        fitting = self.rules.fit(self.state, record.now_s, fact)
        if len(fitting) != 1 or fitting[0] != fact:
            kept = [type(part).__name__ for part in fitting]
            why = f"counts as {', '.join(kept)} without what was lost" if kept else "is about what was lost"
            self.skipped.append(Skipped(record.seq, fact, why))
        for part in fitting:
            self.rules.apply(self.state, record.now_s, part)
        self.facts_applied += 1 if fitting else 0

    def _careful(self, record: Record) -> None:
        """Apply a record as a whole, or else those of its facts that fit."""
        if self._try(record, record.facts):
            for fact in record.facts:
                self._try(record, [fact])

    def _try(self, record: Record, facts: Sequence[Fact]) -> bool:
        """Apply facts; return whether several failed together. A failure changes nothing; a single fact is noted."""
        before, applied, skipped = self.state.snapshot(), self.facts_applied, len(self.skipped)
        try:
            for fact in facts:
                self._fit(record, fact)
            self.rules.check(self.state)
        except Exception as error:
            self.state, self.facts_applied = self.rules.restore(before), applied
            del self.skipped[skipped:]
            if len(facts) == 1:
                why = f"does not fit: {_words(error)}"
                self.skipped.append(Skipped(record.seq, facts[0], why, raised=True))
                return False
            return True
        return False


def _words(error: Exception) -> str:
    return f"{error} is unknown" if isinstance(error, KeyError) else f"{error}" or repr(error)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off: replay makes millions of objects, and searching them for cycles takes long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
