"""The notifications of a job: its ends by default, and clear refusals."""

from __future__ import annotations

import pytest

from gavel.client.jobs import notify
from scheduler.live.observe.notify.events import EVENTS
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.notify import CHANNELS_MAX, JOB_EVENTS, Notify
from tests.support.wording import Wording


def test_a_job_has_the_events_of_jobs() -> None:
    """Every event of a job that channels can receive can be asked for."""
    assert list(JOB_EVENTS) == [event.word for event in EVENTS.values() if event.word]
    assert list(JOB_EVENTS) == list(notify.EVENTS)


def test_without_events_the_ends_count() -> None:
    """Every end is reported by default, a hold and idle GPUs only on request."""
    assert [event for event in JOB_EVENTS if Notify("ops").wants(event)] == [
        "completed",
        "failed",
        "cancelled",
    ]
    assert [event for event in JOB_EVENTS if Notify("ops", ("held",)).wants(event)] == ["held"]


@pytest.mark.parametrize(
    ("field", "entries"),
    [
        ("notify[0].to", (Notify(),)),
        ("notify[1].to", (Notify("ops"), Notify("a" * 257))),
        ("notify[0].on", (Notify("ops", ("ended",)),)),
        ("notify[0].on", (Notify("ops", ("failed", "failed")),)),
        ("notify", (Notify("ops"),) * (CHANNELS_MAX + 1)),
    ],
)
def test_a_wrong_field_is_named(field: str, entries: tuple[Notify, ...], wording: Wording) -> None:
    """A missing channel, an unknown or repeated event and too many channels are refused."""
    with pytest.raises(InvalidSpec) as refused:
        JobSpec(notify=entries).checked()
    assert refused.value.field == field
    wording(refused.value)
