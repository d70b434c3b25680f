"""The book of cached data: whose data is where, which data a job will read, and what the scheduler believes."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import pytest

from scheduler.core.accounts.cached import (
    OF_A_JOB_MAX,
    OF_A_NODE_MAX,
    CachedBook,
    CachedData,
    accepted_cache,
    accepted_data,
)
from scheduler.model.jobs import Job, JobSpec

DIGITS, WORDS = "d" * 32, "e" * 32


def job(name: str = "1", **spec: Any) -> Job:
    """Return a job of ada's."""
    return Job(
        id=name, spec=JobSpec(**{"user": "ada", "job_type": "cnn"} | spec), order=int(name), submitted_s=0.0
    )


def book_of(**nodes: list[CachedData]) -> CachedBook:
    """Return a book of these nodes."""
    book = CachedBook()
    for node, data in nodes.items():
        book.enter_node(node, data)
    return book


def test_a_job_likes_the_nodes_that_have_its_own_users_data() -> None:
    """Data of another user does not count; data of several users does."""
    book = book_of(
        n1=[CachedData("bob", DIGITS, 5.0)],
        n2=[CachedData("ada", DIGITS, 3.0), CachedData("ada", WORDS, 100.0)],
        n3=[CachedData("", DIGITS, 4.0), CachedData("ada", DIGITS, 1.0)],
    )
    assert book.bytes_by_node(job()) == {}
    book.enter_job(job(), {DIGITS: 10.0})
    assert book.bytes_by_node(job()) == {"n2": 3.0, "n3": 4.0}
    assert book.bytes_by_node(job("2", user="bob")) == {}


def test_a_new_job_reads_what_the_last_one_of_its_user_and_type_read() -> None:
    """Its own names replace that; jobs without a type share nothing."""
    book = book_of(n1=[CachedData("ada", DIGITS, 5.0)])
    book.enter_job(job("1"), {DIGITS: 10.0})
    assert book.of_job(job("2")) == {DIGITS: 10.0}
    assert book.of_job(job("2", job_type="lm")) == {}
    book.enter_job(job("2"), {WORDS: 1.0})
    assert (book.of_job(job("1")), book.of_job(job("3"))) == ({DIGITS: 10.0}, {WORDS: 1.0})
    book.enter_job(job("4", job_type=""), {DIGITS: 1.0})
    assert book.of_job(job("5", job_type="")) == {}


def test_the_nodes_of_a_gang_name_what_their_ranks_read() -> None:
    """All of it counts, of the nodes where the gang runs now; a new version of the data replaces the older one."""
    book, gang = CachedBook(), ("n1", "n2")
    for number in range(2 * OF_A_JOB_MAX):
        version = f"{number:032x}"
        for node in gang:
            assert not book.has_named("1", {version: 10.0}, node, gang)
            book.enter_job(job(), {version: 10.0}, node, gang)
            assert book.has_named("1", {version: 10.0}, node, gang)
        assert book.of_job(job()) == {version: 10.0}
    book.enter_job(job(), {DIGITS: 5.0, version: 9.0}, "n2", gang)
    assert book.of_job(job()) == {DIGITS: 5.0, version: 10.0}
    assert CachedBook(book.rows()).rows() == book.rows()
    # The gang moves, and n1 names the same as before.
    assert not book.has_named("1", {version: 10.0}, "n1", ("n1", "n3"))
    book.enter_job(job(), {version: 10.0}, "n1", ("n1", "n3"))
    assert book.of_job(job()) == {version: 10.0}
    # It runs on one node.
    assert not book.has_named("1", {version: 10.0})
    book.enter_job(job(), {version: 10.0})
    assert book.has_named("1", {version: 10.0})
    assert book.gangs == {}


def test_only_nodes_that_have_data_of_a_job_are_looked_at() -> None:
    """A thousand jobs, each with data of its own that no node has, cost no look at any node."""
    book = book_of(**{f"n{number}": [CachedData("ada", WORDS, 1.0)] for number in range(3)})
    for number in range(1000):
        book.enter_job(job(str(number)), {f"{number:032x}": 1.0})
    book.nodes = NoLooks(book.nodes)
    assert book.bytes_of([job(str(number)) for number in range(1000)]) == {}
    book.enter_job(job("7"), {WORDS: 1.0})
    assert book.bytes_of([job("7")]) == {"7": {"n0": 1.0, "n1": 1.0, "n2": 1.0}}


class NoLooks(dict[str, dict[tuple[str, str], float]]):
    """The caches of nodes, at which nobody may look."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all nodes are looked at")

    def __getitem__(self, node: str) -> NoReturn:
        raise AssertionError(f"{node} is looked at")


def test_rows_hold_everything_and_forgetting_drops_it() -> None:
    """A book made from its rows is the same."""
    book = book_of(n1=[CachedData("ada", DIGITS, 5.0)], n2=[])
    book.enter_job(job(), {DIGITS: 10.0})
    again = CachedBook(book.rows())
    assert (again.nodes, again.jobs, again.pools) == (book.nodes, book.jobs, book.pools)
    assert list(again.nodes) == ["n1"]
    again.drop_node("n1")
    again.forget(["1"], [])
    assert (again.nodes, again.jobs, len(again.pools)) == ({}, {}, 1)
    again.forget([], ["cnn"])
    assert again.rows() == CachedBook().rows()


@pytest.mark.parametrize(
    ("user", "key", "used"),
    [
        *[("ada", DIGITS, used) for used in (0.0, -1.0, math.nan, math.inf, 1e300)],
        *[(user, DIGITS, 5.0) for user in ("a\nb", "x" * 9999)],
        *[("ada", key, 5.0) for key in ("../x", "", DIGITS.upper(), DIGITS + "\n", DIGITS + "0")],
    ],
)
def test_impossible_reports_are_dropped(user: str, key: str, used: float) -> None:
    """What is no key, no user or no number of bytes does not reach the journal; the rest does."""
    good = CachedData("ada", WORDS, 7.0)
    assert [entry.key for entry in accepted_cache([CachedData(user, key, used), good])] == [WORDS]
    if user == "ada":
        # A size of 0 is possible here: it is unknown.
        assert [*accepted_data({key: used or -1.0, WORDS: 0.0})] == [WORDS]


def test_the_book_stays_small() -> None:
    """Of a node the largest data sets count, of a job the first ones; small changes are none."""
    data = [CachedData("ada", f"{number:032x}", 1.2**number) for number in range(1, 100)]
    kept = accepted_cache(data)
    assert len(kept) == OF_A_NODE_MAX
    assert {entry.key for entry in kept} == {f"{number:032x}" for number in range(100 - OF_A_NODE_MAX, 100)}
    assert len(accepted_data({f"{number:032x}": 1.0 for number in range(100)})) == OF_A_JOB_MAX
    assert accepted_cache([CachedData("a", DIGITS, 1e9)]) == accepted_cache([CachedData("a", DIGITS, 1.01e9)])
