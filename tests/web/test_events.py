"""The log of events from which browsers read, each at its own pace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gavel.web import events
from gavel.web.events import EventLog, encoded


def _log(count: int) -> EventLog:
    log = EventLog()
    for number in range(count):
        log.append("jobs", {"number": number})
    return log


def test_a_reader_resumes_after_any_event() -> None:
    """Whichever event was the last before the connection was lost, exactly the later ones follow."""
    log, all_of_them = _log(20), [encoded("jobs", {"number": number}) for number in range(20)]
    for read in range(21):
        position = log.position(log.id_of(read))
        assert read == position
        following = log.after(read)
        assert following is not None
        end, rest = following
        assert end == 20
        texts = [text.partition(b"\n")[2] for text in rest.split(b"id: ")[1:]]
        assert all_of_them[read:] == texts


def test_ids_that_this_log_did_not_give_out_are_not_continued() -> None:
    """Another process, the future, nonsense: the reader has to begin again."""
    log, other = _log(3), _log(3)
    name = log.last_id.partition("-")[0]
    for id_ in (
        other.last_id,
        f"{name}-4",
        f"{name}--1",
        f"{name}-x",
        name,
        "",
        "-",
        f"{name}-{'9' * 40}",
        f"{name}-٣",
    ):
        assert log.position(id_) is None, id_


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_the_log_stays_within_its_limits(sizes: list[int]) -> None:
    """Old events are dropped by number and by size; a reader that needs them is told to begin again."""
    log = EventLog(events_max=10, size_max=2000)
    for size in sizes:
        log.append("jobs", "x" * size)
    kept = [position for position in range(log.last + 1) if log.after(position) is not None]
    assert log.last == kept[-1]
    assert list(range(kept[0], log.last + 1)) == kept
    assert len(kept) - 1 <= 10
    following = log.after(kept[0])
    assert following is not None
    assert len(following[1]) <= 2000
    assert log.position(log.id_of(kept[0] - 1)) is None


def test_hostile_text_cannot_end_an_event() -> None:
    """Line breaks of all kinds within a name stay within the one line of data."""
    event = encoded("jobs", {"name": "a\n\nevent: live\ndata: {}\r\r\u2028\x00"}, "x-1")
    head, data, *rest = event.split(b"\ndata: ")
    assert head == b"id: x-1\nevent: jobs"
    assert not rest
    assert data.count(b"\n") == 2
    assert data.endswith(b"\n\n")
    assert b"\r" not in event


def test_a_reader_gets_a_piece_at_a_time() -> None:
    """However far it is behind, so that a thousand slow readers do not hold a thousand copies of the log."""
    log = EventLog()
    for number in range(200):
        log.append("jobs", str(number) + "x" * 30_000)
    position, pieces = 0, []
    while position < log.last:
        following = log.after(position)
        assert following is not None
        position = following[0]
        pieces.append(following[1])
    assert max(map(len, pieces)) <= events.PIECE_BYTES_MAX
    assert b"".join(pieces).count(b"id: ") == 200
    log.append("jobs", "x" * 2 * events.PIECE_BYTES_MAX)
    following = log.after(200)
    assert following is not None
    assert following[0] == 201


def test_the_limits_are_those_of_the_page() -> None:
    """With two events a second, a browser may be away for a quarter of an hour."""
    assert events.EVENTS_MAX >= 2 * 15 * 60
