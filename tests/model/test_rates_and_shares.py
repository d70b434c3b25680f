"""Rates from tables and from measurements, and the table of each column's due and received time."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from scheduler.model.lease import Bundle
from scheduler.model.shares import ShareTable, ties
from scheduler.model.throughput import RateBook, RateKey

TRUST_S = 60.0
KEY = RateKey("cnn", 1, "v100")


def test_rates_are_looked_up_as_they_were_given() -> None:
    """Rows are found by job type, width and worker type; without a rate for spread jobs the other rate is used."""
    book = RateBook()
    book.put([("cnn", 2, "v100", 16.0)])
    assert (book.from_table("cnn", 2, "v100"), book.from_table("cnn", 2, "v100", True)) == (16.0, 16.0)
    assert (book.from_table("cnn", 1, "v100"), book.from_table("lm", 2, "v100")) == (None, None)
    book.put([("cnn", 2, "v100", 9.0)], spread=True)
    assert (book.from_table("cnn", 2, "v100"), book.from_table("cnn", 2, "v100", True)) == (16.0, 9.0)
    assert book.known == {"cnn"}


def test_a_pair_is_found_in_both_orders() -> None:
    """Each job type keeps its own rate, whichever is named first."""
    book = RateBook()
    book.put_pairs([("v100", "cnn", "lm", 1, 8.0, 3.0)])
    assert book.pairs["v100", "cnn", "lm", 1] == (8.0, 3.0)
    assert book.pairs["v100", "lm", "cnn", 1] == (3.0, 8.0)


def test_a_measurement_gains_weight_as_it_grows() -> None:
    """After half the trust time the rate is halfway between the table and the measurement."""
    book = RateBook()
    assert book.rate(KEY, 10.0, TRUST_S) == 10.0
    assert book.observe(KEY, 4.0 * 30, 30.0, TRUST_S)
    assert book.rate(KEY, 10.0, TRUST_S) == pytest.approx(7.0)
    book.observe(KEY, 4.0 * 300, 300.0, TRUST_S)
    assert book.rate(KEY, 10.0, TRUST_S) == pytest.approx(4.0)
    assert book.rate(KEY, None, TRUST_S) == pytest.approx(4.0)


def test_noise_changes_no_rate() -> None:
    """A measurement within 1% of the estimated rate leaves the rate exactly as it was."""
    book = RateBook()
    book.observe(KEY, 10.05 * 100, 100.0, TRUST_S)
    assert book.rate(KEY, 10.0, TRUST_S) == 10.0
    assert not book.observe(KEY, 10.04 * 100, 100.0, TRUST_S)


@pytest.mark.parametrize(
    ("steps", "stepping_s"),
    [(1.0, 0.0), (-1.0, 5.0), (math.nan, 5.0), (math.inf, 5.0), (2.0**53, 1e-300), (1.0, math.nan)],
)
def test_impossible_measurements_are_ignored(steps: float, stepping_s: float) -> None:
    """Impossible steps or times do not change a rate."""
    book = RateBook()
    assert not book.observe(KEY, steps, stepping_s, TRUST_S)
    assert book.measured == {}


def test_a_job_type_that_changes_is_noticed() -> None:
    """Old measurements fade: after a while at another rate, the estimate is that rate."""
    book = RateBook()
    book.observe(KEY, 10.0 * 10_000, 10_000.0, TRUST_S)
    for _ in range(20):
        book.observe(KEY, 5.0 * 200, 200.0, TRUST_S)
    assert book.rate(KEY, None, TRUST_S) == pytest.approx(5.0, rel=0.05)


def test_a_slow_drift_is_noticed_in_the_end() -> None:
    """Small changes add up until the version changes, so that caches of rates are never far off."""
    book = RateBook()
    rate = 10.0
    book.observe(KEY, rate * 10_000, 10_000.0, TRUST_S)
    remembered, version = book.rate(KEY, None, TRUST_S), book.version
    for _ in range(400):
        rate *= 0.999
        book.observe(KEY, rate * 300, 300.0, TRUST_S)
        if book.version != version:
            remembered, version = book.rate(KEY, None, TRUST_S), book.version
        assert remembered == pytest.approx(book.rate(KEY, None, TRUST_S), rel=0.03)


def test_a_rate_book_survives_a_snapshot() -> None:
    """A rate book restored from its rows is the same."""
    book = RateBook()
    book.put([("cnn", 1, "v100", 10.0), ("lm", 1, "k80", 2.0)])
    book.put([("cnn", 2, "v100", 9.0)], spread=True)
    book.put_pairs([("v100", "cnn", "lm", 1, 8.0, 3.0)])
    book.observe(KEY, 40.0, 5.0, TRUST_S)
    restored = RateBook.from_rows(book.rows())
    assert restored.rows() == book.rows()
    assert restored.rate(KEY, 10.0, TRUST_S) == book.rate(KEY, 10.0, TRUST_S)


# ------------------------------------------------------------------------------------------------------ shares


def bundles(*jobs: str) -> list[Bundle]:
    """Columns on a v100: one job each, or two joined by a plus."""
    return [Bundle(tuple(job.split("+")), "v100", 1) for job in jobs]


def table(**shares: float) -> ShareTable:
    """Columns with these shares."""
    share_table = ShareTable(bundles(*shares))
    share_table.share[:] = list(shares.values())
    return share_table


def test_rounds_pass() -> None:
    """In each round every column is due its share of the time, and a running column receives all of the time.

    The sums of time due and of time received decay at the same rate.
    """
    shares = table(a=0.25, b=0.75)
    for _ in range(3):
        shares.begin_round(100.0, 0.5)
        shares.receive(bundles("b"), 100.0)
    assert shares.entitled_s.tolist() == pytest.approx([25 * 1.75, 75 * 1.75])
    assert shares.received_s.tolist() == pytest.approx([0.0, 175.0])


def test_sums_live_on_in_the_next_table() -> None:
    """A column that is also in the old table keeps its sums; a new column starts at 0."""
    old = table(a=0.5, b=0.5)
    old.begin_round(100.0, 1.0)
    old.receive(bundles("a"), 100.0)
    old.note_skipped(bundles("b"))
    new = ShareTable.from_allocation(old, bundles("b", "c"))
    assert (new.entitled_s.tolist(), new.received_s.tolist()) == ([50.0, 0.0], [0.0, 0.0])
    assert new.skipped.tolist() == [1, 0]


def test_being_skipped_counts_rounds_in_a_row() -> None:
    """A round in which a column is not skipped resets its count; an unknown column is ignored."""
    shares = table(a=0.5, b=0.5)
    shares.note_skipped(bundles("a"))
    shares.note_skipped(bundles("a", "b", "x"))
    assert shares.skipped.tolist() == [2, 1]
    shares.note_skipped(bundles("b"))
    assert shares.skipped.tolist() == [0, 2]


def test_columns_are_added_without_a_share() -> None:
    """A job that came after the allocation has a row, is due nothing, and can receive time."""
    shares = table(a=1.0)
    shares.extend(bundles("b", "a+b"))
    shares.receive(bundles("a+b"), 30.0)
    assert shares.share.tolist() == [1.0, 0.0, 0.0]
    assert shares.received_s.tolist() == [0.0, 0.0, 30.0]
    assert (shares.first.tolist(), shares.second.tolist()) == ([0, 1, 0], [-1, -1, 1])


def test_a_table_survives_a_snapshot() -> None:
    """A table restored from its rows is the same, ties included."""
    chance = Random(3)
    shares = table(**{f"j{i}": chance.random() for i in range(20)})
    shares.extend(bundles("j1+j2"))
    shares.begin_round(100.0, 0.9)
    shares.receive(bundles("j3", "j1+j2"), 50.0)
    shares.note_skipped(bundles("j4"))
    restored = ShareTable.from_rows(shares.rows())
    assert restored.rows() == shares.rows()
    assert np.array_equal(restored.tie, shares.tie)
    assert (restored.row_of, restored.job_row) == (shares.row_of, shares.job_row)


def test_ties_do_not_depend_on_order() -> None:
    """Ties differ between columns, and do not depend on the order of arrival."""
    all_ties = ties(bundles(*(str(i) for i in range(100)))).tolist()
    assert len(set(all_ties)) == 100
    assert all_ties != sorted(all_ties)
    assert ties(bundles("7")).tolist() == [all_ties[7]]


def test_the_first_way_in_which_a_type_was_measured_follows_the_measurements() -> None:
    """The least of those alone and without a plan, whichever was measured first; none once it is forgotten."""
    book = RateBook()
    assert book.first_measured("new") is None
    for key in (
        RateKey("new", 1, "k80", plan="a"),
        RateKey("new", 1, "k80", partner="old"),
        RateKey("new", 2, "v100"),
        RateKey("new", 1, "v100"),
        RateKey("other", 1, "a100"),
    ):
        book.observe(key, 100.0, 100.0, 600.0)
        measured = sorted(
            key for key in book.measured if key.job_type == "new" and key[3:] == ("", False, "")
        )
        assert book.first_measured("new") == (measured[0] if measured else None)
    assert book.first_measured("new") == RateKey("new", 1, "v100")
    book.forget(["new"])
    assert (book.first_measured("new"), book.first_measured("other")) == (None, RateKey("other", 1, "a100"))
