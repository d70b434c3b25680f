"""What a report teaches about rates: only what was measured in one company, and heard of without a break."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.core.apply import apply
from scheduler.core.facts import AllocationAsked, RoundPlanned
from scheduler.core.messages import HeldLease, NodeHello, NodeSilent, Progress, Woke
from scheduler.core.planning.pairing import pair_rates
from scheduler.model.throughput import DRIFT, RateBook, RateKey
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
SOLO_CNN = RateKey("cnn", 1, "v100")
SOLO_LM = RateKey("lm", 1, "v100")
PAIR_LM = RateKey("lm", 1, "v100", "cnn")
PAIR_CNN = RateKey("cnn", 1, "v100", "lm")


def learning(desk_of: DeskOf, **changed: object) -> Desk:
    """One GPU, and rates that are measured."""
    return desk_of(node("n1", 1), **{"policy": "las+packing", "learn_rates": True, **changed})


def packed(desk_of: DeskOf) -> tuple[Desk, str, str]:
    """A cnn and an lm that share the GPU since 8 s; each has said once how far it is."""
    desk = learning(desk_of)
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    desk.until(8.0)
    cnn, lm = (desk.job(name).lease or "" for name in ("1", "2"))
    desk.report(started=(cnn, lm))
    desk.settle()
    assert desk.holding(lm).bundle.jobs == ("1", "2")
    return desk, cnn, lm


def says(desk: Desk, at_s: float, lease: str, steps: float, stepping_s: float, **more: object) -> None:
    """How far a job is, at a time."""
    desk.until(at_s)
    desk.report(progress=(Progress(lease, steps, 0.0, stepping_s),), **more)
    desk.settle()


def measured(desk: Desk) -> dict[RateKey, float]:
    """Rates that were measured, and the time that they rest on."""
    return {key: seen.observed_s for key, seen in desk.core.state.rates.measured.items()}


def test_a_window_in_one_company_teaches_its_rate(desk_of: DeskOf) -> None:
    """Two packed jobs that both run: what one does is the rate of the pair."""
    desk, _, lm = packed(desk_of)
    says(desk, 50.0, lm, 100.0, 40.0)  # the first window: the partner may have started within it
    says(desk, 100.0, lm, 275.0, 90.0)
    assert measured(desk) == {PAIR_LM: 50.0}
    assert desk.core.state.rates.measured[PAIR_LM].rate == pytest.approx(3.5)


def test_a_window_in_which_the_partner_left_teaches_nothing(desk_of: DeskOf) -> None:
    """Half of it was packed, half alone: neither rate. The window after that is clean."""
    desk, cnn, lm = packed(desk_of)
    says(desk, 50.0, lm, 100.0, 40.0)
    desk.until(100.0)
    desk.report(exits=(exited(cnn, "finished", 1e6),))
    desk.settle()
    says(desk, 150.0, lm, 475.0, 140.0)
    assert SOLO_LM not in measured(desk)
    assert PAIR_LM not in measured(desk)
    says(desk, 200.0, lm, 675.0, 190.0)
    assert measured(desk)[SOLO_LM] == 50.0
    assert desk.core.state.rates.measured[SOLO_LM].rate == pytest.approx(4.0)


def test_what_is_reported_as_the_partner_leaves_is_clean(desk_of: DeskOf) -> None:
    """A report that comes with the exit is about the time before it."""
    desk, cnn, lm = packed(desk_of)
    says(desk, 50.0, lm, 100.0, 40.0)
    says(desk, 100.0, lm, 275.0, 90.0, exits=(exited(cnn, "finished", 1e6),))
    assert measured(desk) == {PAIR_LM: 50.0}


def test_a_partner_that_has_not_started_does_not_count_as_company(desk_of: DeskOf) -> None:
    """It is to share the GPU and is not there yet: what is measured now is not the rate of the pair."""
    desk = learning(desk_of)
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    desk.until(8.0)
    lm = desk.job("2").lease or ""
    desk.report(started=(lm,))
    desk.settle()
    says(desk, 50.0, lm, 168.0, 42.0)
    assert measured(desk) == {}


def test_a_partner_that_is_still_leaving_counts_as_company(desk_of: DeskOf) -> None:
    """Its lease is to go on alone, but the other's processes are still on the GPU."""
    desk, cnn, lm = packed(desk_of)
    says(desk, 50.0, lm, 100.0, 40.0)
    alone = desk.holding(lm).bundle._replace(jobs=("2",))
    planned = RoundPlanned(number=2, starts_s=99, ends_s=459, ended=(cnn,), rebundled=((lm, alone),))
    apply(desk.core.state, 99.0, planned)
    says(desk, 100.0, lm, 275.0, 90.0)
    assert measured(desk) == {}


def test_the_first_report_after_silence_teaches_nothing(desk_of: DeskOf) -> None:
    """What happened while nobody heard of it nobody knows; the next window is clean."""
    desk = learning(desk_of, policy="las")
    (lease,) = desk.run(job(steps=1e6))
    says(desk, 50.0, lease, 400.0, 40.0)
    assert measured(desk) == {SOLO_CNN: 40.0}
    desk.tell(60.0, NodeSilent(node="n1"))
    desk.settle()
    held = HeldLease(lease=lease, steps=600.0, ran_s=60.0)
    desk.tell(100.0, NodeHello(spec=node("n1", 1), held=(held,)))
    desk.settle()
    assert desk.job("1").lease == lease
    says(desk, 150.0, lease, 500.0, 140.0)
    assert measured(desk) == {SOLO_CNN: 40.0}
    says(desk, 200.0, lease, 1000.0, 190.0)
    assert measured(desk) == {SOLO_CNN: 90.0}


def test_the_first_report_to_a_new_scheduler_teaches_nothing(desk_of: DeskOf) -> None:
    """The one before was away for nobody knows how long."""
    desk = learning(desk_of, policy="las")
    (lease,) = desk.run(job(steps=1e6))
    desk.take_over(40.0)
    desk.settle()
    says(desk, 50.0, lease, 100.0, 40.0)
    assert measured(desk) == {}


# ---------------------------------------------------------------------------------------------------- drift


def test_a_rate_that_drifts_is_asked_about_again() -> None:
    """Steps too small to matter one by one do when they add up to a tenth since the last question."""
    book, rate = RateBook(), 10.0
    key = RateKey("cnn", 1, "v100")
    book.observe(key, rate * 10_000, 10_000.0, 60.0)
    book.note_asked()
    told = []
    for _ in range(60):
        rate *= 0.99
        told.append(book.observe(key, rate * 300, 300.0, 60.0))
    assert any(told), "it is noticed"
    first = told.index(True)
    assert first > 5, "and not at every step"
    book.note_asked()
    assert not book.observe(key, rate * 300, 300.0, 60.0), "asked about, it is no news"


def test_drift_alone_leads_to_a_new_question(desk_of: DeskOf) -> None:
    """Nobody came and nobody left, but a job does less and less: the next boundary asks, and only that one."""
    desk = learning(desk_of, policy="las", trust_after_s=10.0)
    (lease,) = desk.run(job(steps=1e9))
    rate, steps, stepping_s = 10.0, 0.0, 0.0
    asked: list[float] = []
    for number in range(1, 60):
        stepping_s += 100.0
        steps += 100.0 * rate
        says(desk, 10.0 + 100.0 * number, lease, steps, stepping_s)
        rate *= 0.985
        asked.append(desk.core.state.asked.number)
    questions = asked[-1] - asked[10]
    total = 0.985**49
    assert 2 <= questions <= 12, f"{questions} questions while the rate fell to {total:.2f}"
    book = desk.core.state.rates
    seen = book.measured[SOLO_CNN]
    assert desk.core.state.stale or abs(seen.rate - seen.asked) <= DRIFT * seen.asked


def test_nothing_is_asked_while_rates_stay(desk_of: DeskOf) -> None:
    """A rate that is sure and stays where it was is no reason for an allocation."""
    desk = learning(desk_of, policy="las", trust_after_s=10.0)
    (lease,) = desk.run(job(steps=1e9))
    for number in range(1, 12):
        says(desk, 10.0 + 100.0 * number, lease, 1000.0 * number, 100.0 * number)
    before = desk.core.state.asked.number
    desk.tell(desk.now_s, Woke(what="tick"))
    assert not [fact for fact in desk.facts if isinstance(fact, AllocationAsked)]
    desk.settle()
    desk.until(3000.0)
    assert desk.core.state.asked.number == before


def test_a_measured_pair_needs_no_row_of_the_table(desk_of: DeskOf) -> None:
    """Both rates were measured, and the row was lost: the pair is packed as before. One rate alone is not enough."""
    key = ("v100", "cnn", "lm", 1)
    for both in (True, False):
        desk = learning(desk_of)
        rates = desk.core.state.rates
        assert pair_rates(desk.core.state, *key) == (9.0, 3.5)
        rates.pairs.clear()
        for one, rate in ((PAIR_LM, 3.0), (PAIR_CNN, 8.0))[: 1 + both]:
            rates.observe(one, rate * 1000.0, 1000.0, desk.core.state.settings.trust_after_s)
        assert pair_rates(desk.core.state, *key) == ((8.0, 3.0) if both else None)
        desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
        desk.until(8.0)
        widths = {len(holding.bundle.jobs) for holding in desk.core.state.leases.values()}
        assert widths == {2 if both else 1}
        desk.settle()
