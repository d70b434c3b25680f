"""Rates from reports: only a window beside one unchanging partner, without a break, is measured."""

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
    """Return a desk with one GPU, on which rates are measured."""
    return desk_of(node("n1", 1), **{"policy": "las+packing", "learn_rates": True, **changed})


def packed(desk_of: DeskOf) -> tuple[Desk, str, str]:
    """Return a desk on which a cnn and an lm have shared the GPU since 8 s."""
    desk = learning(desk_of)
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    desk.until(8.0)
    cnn, lm = (desk.job(name).lease or "" for name in ("1", "2"))
    desk.report(started=(cnn, lm))
    desk.settle()
    assert desk.holding(lm).bundle.jobs == ("1", "2")
    return desk, cnn, lm


def report_progress(
    desk: Desk, at_s: float, lease: str, steps: float, stepping_s: float, **more: object
) -> None:
    """Report the progress of a job at this time."""
    desk.until(at_s)
    desk.report(progress=(Progress(lease, steps, 0.0, stepping_s),), **more)
    desk.settle()


def measured(desk: Desk) -> dict[RateKey, float]:
    """Return how long each measured rate was observed."""
    return {key: entry.observed_s for key, entry in desk.core.state.rates.measured.items()}


def test_a_window_beside_one_partner_teaches_its_rate(desk_of: DeskOf) -> None:
    """While both packed jobs run, the progress of one of them is a rate of the pair."""
    desk, _, lm = packed(desk_of)
    # The first window is not measured, since the partner may have started within it.
    report_progress(desk, 50.0, lm, 100.0, 40.0)
    report_progress(desk, 100.0, lm, 275.0, 90.0)
    assert measured(desk) == {PAIR_LM: 50.0}
    assert desk.core.state.rates.measured[PAIR_LM].rate == pytest.approx(3.5)


def test_a_window_in_which_the_partner_left_teaches_nothing(desk_of: DeskOf) -> None:
    """Half packed and half alone, the window gives neither rate; the next window counts."""
    desk, cnn, lm = packed(desk_of)
    report_progress(desk, 50.0, lm, 100.0, 40.0)
    desk.until(100.0)
    desk.report(exits=(exited(cnn, "finished", 1e6),))
    desk.settle()
    report_progress(desk, 150.0, lm, 475.0, 140.0)
    assert SOLO_LM not in measured(desk)
    assert PAIR_LM not in measured(desk)
    report_progress(desk, 200.0, lm, 675.0, 190.0)
    assert measured(desk)[SOLO_LM] == 50.0
    assert desk.core.state.rates.measured[SOLO_LM].rate == pytest.approx(4.0)


def test_a_report_that_comes_with_the_partners_exit_counts(desk_of: DeskOf) -> None:
    """A report that comes with the partner's exit covers the time before it, so it is a rate of the pair."""
    desk, cnn, lm = packed(desk_of)
    report_progress(desk, 50.0, lm, 100.0, 40.0)
    report_progress(desk, 100.0, lm, 275.0, 90.0, exits=(exited(cnn, "finished", 1e6),))
    assert measured(desk) == {PAIR_LM: 50.0}


def test_a_partner_that_has_not_started_does_not_count_as_company(desk_of: DeskOf) -> None:
    """The partner's lease has not started yet, so a rate measured now is not the rate of the pair."""
    desk = learning(desk_of)
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    desk.until(8.0)
    lm = desk.job("2").lease or ""
    desk.report(started=(lm,))
    desk.settle()
    report_progress(desk, 50.0, lm, 168.0, 42.0)
    assert measured(desk) == {}


def test_a_partner_that_is_still_leaving_counts_as_company(desk_of: DeskOf) -> None:
    """The job's lease is planned to continue alone, but the partner's processes are still on the GPU."""
    desk, cnn, lm = packed(desk_of)
    report_progress(desk, 50.0, lm, 100.0, 40.0)
    alone = desk.holding(lm).bundle._replace(jobs=("2",))
    planned = RoundPlanned(number=2, starts_s=99, ends_s=459, ended=(cnn,), rebundled=((lm, alone),))
    apply(desk.core.state, 99.0, planned)
    report_progress(desk, 100.0, lm, 275.0, 90.0)
    assert measured(desk) == {}


def test_the_first_report_after_silence_teaches_nothing(desk_of: DeskOf) -> None:
    """Anything may have happened during the silence, so only the next window counts."""
    desk = learning(desk_of, policy="las")
    (lease,) = desk.run(job(steps=1e6))
    report_progress(desk, 50.0, lease, 400.0, 40.0)
    assert measured(desk) == {SOLO_CNN: 40.0}
    desk.tell(60.0, NodeSilent(node="n1"))
    desk.settle()
    held = HeldLease(lease=lease, steps=600.0, ran_s=60.0)
    desk.tell(100.0, NodeHello(spec=node("n1", 1), held=(held,)))
    desk.settle()
    assert desk.job("1").lease == lease
    report_progress(desk, 150.0, lease, 500.0, 140.0)
    assert measured(desk) == {SOLO_CNN: 40.0}
    report_progress(desk, 200.0, lease, 1000.0, 190.0)
    assert measured(desk) == {SOLO_CNN: 90.0}


def test_the_first_report_to_a_new_scheduler_teaches_nothing(desk_of: DeskOf) -> None:
    """The new scheduler cannot tell how long the old one was away, so it measures nothing by that report."""
    desk = learning(desk_of, policy="las")
    (lease,) = desk.run(job(steps=1e6))
    desk.take_over(40.0)
    desk.settle()
    report_progress(desk, 50.0, lease, 100.0, 40.0)
    assert measured(desk) == {}


# ---------------------------------------------------------------------------------------------------- drift


def test_drift_adds_up_until_a_question_is_due() -> None:
    """Changes too small to matter by themselves call for a question once they add up to a tenth."""
    book, rate = RateBook(), 10.0
    key = RateKey("cnn", 1, "v100")
    book.observe(key, rate * 10_000, 10_000.0, 60.0)
    book.note_asked()
    calls_for_question = []
    for _ in range(60):
        rate *= 0.99
        calls_for_question.append(book.observe(key, rate * 300, 300.0, 60.0))
    assert any(calls_for_question), "the drift is noticed"
    first = calls_for_question.index(True)
    assert first > 5, "and not at every step"
    book.note_asked()
    assert not book.observe(key, rate * 300, 300.0, 60.0), "asked about, it is no news"


def test_drift_alone_leads_to_a_new_question(desk_of: DeskOf) -> None:
    """No job comes or goes, but one becomes slower and slower: boundaries ask again, but not each of them."""
    desk = learning(desk_of, policy="las", trust_after_s=10.0)
    (lease,) = desk.run(job(steps=1e9))
    rate, steps, stepping_s = 10.0, 0.0, 0.0
    question_numbers: list[float] = []
    for number in range(1, 60):
        stepping_s += 100.0
        steps += 100.0 * rate
        report_progress(desk, 10.0 + 100.0 * number, lease, steps, stepping_s)
        rate *= 0.985
        question_numbers.append(desk.core.state.asked.number)
    questions = question_numbers[-1] - question_numbers[10]
    total = 0.985**49
    assert 2 <= questions <= 12, f"{questions} questions while the rate fell to {total:.2f}"
    book = desk.core.state.rates
    entry = book.measured[SOLO_CNN]
    assert desk.core.state.stale or abs(entry.rate - entry.asked) <= DRIFT * entry.asked


def test_nothing_is_asked_while_rates_stay(desk_of: DeskOf) -> None:
    """A trusted rate that does not change is no reason for a new question."""
    desk = learning(desk_of, policy="las", trust_after_s=10.0)
    (lease,) = desk.run(job(steps=1e9))
    for number in range(1, 12):
        report_progress(desk, 10.0 + 100.0 * number, lease, 1000.0 * number, 100.0 * number)
    before = desk.core.state.asked.number
    desk.tell(desk.now_s, Woke(what="tick"))
    assert not [fact for fact in desk.facts if isinstance(fact, AllocationAsked)]
    desk.settle()
    desk.until(3000.0)
    assert desk.core.state.asked.number == before


def test_a_measured_pair_needs_no_row_of_the_table(desk_of: DeskOf) -> None:
    """With both rates measured and no row in the table, the pair is packed as before; one rate alone is not enough."""
    key = ("v100", "cnn", "lm", 1)
    for both in (True, False):
        desk = learning(desk_of)
        rates = desk.core.state.rates
        assert pair_rates(desk.core.state, *key) == (9.0, 3.5)
        rates.pairs.clear()
        for rate_key, rate in ((PAIR_LM, 3.0), (PAIR_CNN, 8.0))[: 1 + both]:
            rates.observe(rate_key, rate * 1000.0, 1000.0, desk.core.state.settings.trust_after_s)
        assert pair_rates(desk.core.state, *key) == ((8.0, 3.0) if both else None)
        desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
        desk.until(8.0)
        widths = {len(holding.bundle.jobs) for holding in desk.core.state.leases.values()}
        assert widths == {2 if both else 1}
        desk.settle()
