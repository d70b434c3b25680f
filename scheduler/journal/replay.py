"""From a journal back to a state: the newest sound snapshot, then every fact after it.

Up to the first lost record every fact must apply. One that does not is a bug: it is set aside alone, as if its record
were damaged. After the first loss a fact counts as far as it still fits (docs/journal-format.md says why), which is
tried out on a state that can be taken back.
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

TRY_MIN, TRY_MAX = 16, 1024  # records that are applied between two looks at whether all is well


class State(Protocol):
    """What a snapshot is made of."""

    def snapshot(self) -> bytes:
        """All of it, as bytes."""
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A fact after the damage that did not fit any more, or only in part."""

    seq: int
    fact: Fact
    why: str
    raised: bool = False  # it cannot be applied, or breaks an invariant

    def __str__(self) -> str:
        return f"record {self.seq}: {type(self.fact).__name__} {self.why}"


@dataclass(frozen=True, slots=True)
class Recovered(Generic[S]):
    """A state, and how it came about."""

    state: S
    facts_applied: int
    from_snapshot: int | None  # the record after which it was made; None: from the beginning
    damage: tuple[Damage, ...]  # whatever was found, needed or not
    skipped: tuple[Skipped, ...]
    lost_records: int  # that the state would have needed; 0: it is exactly what it was
    set_aside: tuple[Fact, ...] = ()  # facts that do not apply though nothing before them is lost: a bug

    def report(self) -> list[str]:
        """What a person should be told, in lines; none when all is well."""
        return [*(str(found) for found in self.damage), *(str(skipped) for skipped in self.skipped)]


@dataclass(frozen=True, slots=True)
class Rules(Generic[S]):
    """How facts become a state."""

    make: Callable[[], S]
    restore: Callable[[bytes], S]
    apply: Callable[[S, float, Fact], None]
    check: Callable[[S], object] = lambda state: None  # raises when the state contradicts itself
    fit: Callable[[S, float, Fact], Sequence[Fact]] = lambda state, now_s, fact: (fact,)
    # what a fact comes to after a record was lost: without what it says of things that nobody knows
    lost: Callable[[S, int], tuple[float, Fact]] | None = None
    # the fact that so many records are lost, and its time: from then on nobody takes their numbers for unused


def recover(journal: Journal, rules: Rules[S], *, strict: bool = False) -> Recovered[S]:
    """The state that the journal adds up to. Damage never raises, unless `strict`; see `Recovered.damage`.

    After damage, and after facts that were set aside, the journal gets a snapshot of the result, so that the next start
    does not have to find it again. It says with a fact how many records are lost, so that nobody ever uses their
    numbers again.
    """
    damage: list[Damage] = []
    in_doubt = 0  # the first record that does not apply
    with no_garbage_collection():
        state, start = _from_snapshot(journal, rules, damage)
        replay = _Replay(rules, state)
        after = 0 if start is None else start
        stream = journal.scan(after)
        for found in stream:
            if isinstance(found, Damage):
                damage.append(found)
                if strict:
                    raise DamagedJournal(f"{found}; recovery without 'strict' goes on after it", found)
                break
            try:
                replay.apply(found)
            except CannotReplay as error:
                if strict:
                    raise
                log.error("%(error)s", {"error": error}, exc_info=error)
                replay.state, in_doubt = _before(journal, rules, found.seq), found.seq
                stream = chain((found,), stream)
                break
        if in_doubt or any(found.lost for found in damage):
            replay.carry_on(_records(stream, damage))
        lost = sum(found.lost for found in damage)
        set_aside = [one for one in replay.skipped if one.raised and in_doubt]
        lost += len({one.seq for one in set_aside})
    if lost and rules.lost is not None:
        now_s, fact = rules.lost(replay.state, lost)
        rules.apply(replay.state, now_s, fact)
        if not journal.read_only:
            journal.append(now_s, [fact])  # before the snapshot: who starts from that has to know it, too
    if (damage or lost) and not journal.read_only:
        journal.set_aside([found for found in damage if not found.known])
        journal.write_snapshot(journal.last_seq, replay.state.snapshot())
    return Recovered(
        replay.state,
        replay.facts_applied,
        start,
        tuple(damage),
        tuple(replay.skipped),
        lost,
        tuple(one.fact for one in set_aside),
    )


def _before(journal: Journal, rules: Rules[S], seq: int) -> S:
    """The state before this record, which was applied in part."""
    state, start = _from_snapshot(journal, rules, [])
    replay = _Replay(rules, state)
    for found in journal.scan(0 if start is None else start):
        if isinstance(found, Damage) or found.seq >= seq:
            break
        replay.apply(found)
    return replay.state


def _from_snapshot(journal: Journal, rules: Rules[S], damage: list[Damage]) -> tuple[S, int | None]:
    for found in journal.snapshots():
        if isinstance(found, Damage):
            damage.append(found)
            continue
        state = _restored(found, rules, damage)
        if state is not None:
            return state, found.seq
    return rules.make(), None


def _restored(snapshot: Snapshot, rules: Rules[S], damage: list[Damage]) -> S | None:
    try:
        return rules.restore(snapshot.payload)
    except NewerJournal:
        raise
    except Exception as error:  # whatever the state thinks of its bytes: the records are there as well
        why = f"it cannot be restored: {error!r}"
        damage.append(Damage(snapshot.seq, snapshot.seq, why, "snapshot", snapshot.payload))
        return None


def _records(stream: Iterable[Record | Damage], damage: list[Damage]) -> Iterator[Record]:
    for found in stream:
        if isinstance(found, Damage):
            damage.append(found)
        else:
            yield found


class _Replay(Generic[S]):
    """A state on its way through the records."""

    def __init__(self, rules: Rules[S], state: S) -> None:
        self.rules = rules
        self.state = state
        self.facts_applied = 0
        self.skipped: list[Skipped] = []

    def apply(self, record: Record) -> None:
        """One record of a journal without a hole so far."""
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
        """The records after a hole: many at a time while all goes well, one by one where it does not."""
        try:
            self.rules.check(self.state)
        except Exception as error:  # what is broken already is no reason to leave out whatever follows
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
            except Exception:  # it does not matter why: it is found out fact by fact
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
        """A record whole if that goes well; otherwise those of its facts with which all is well."""
        if self._try(record, record.facts):
            for fact in record.facts:
                self._try(record, [fact])

    def _try(self, record: Record, facts: Sequence[Fact]) -> bool:
        """Apply facts; whether that failed, in which case nothing has changed. A single one is then noted."""
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
    return f"nothing is known of {error}" if isinstance(error, KeyError) else f"{error}" or repr(error)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Millions of new objects, none of them garbage: looking for cycles among them again and again takes the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
