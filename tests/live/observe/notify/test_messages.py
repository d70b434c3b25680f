"""The messages: one form for one event and for many, of bounded size, and harmless in a chat."""

from __future__ import annotations

import json

from scheduler.live.observe.notify.messages import EVENTS_BYTES_MAX, compose, fitting
from tests.support.wording import Wording


def texts(*words: str) -> list[str]:
    """Return events with these texts, in JSON."""
    return [json.dumps({"at": "2027-01-15T08:00:00Z", "text": word}) for word in words]


def test_one_event_is_its_own_text() -> None:
    """The text of a message with one event is that of the event."""
    message = compose("ops", "0a", "job_failed", texts("job 1 failed"), 0)
    assert (message.key, message.event) == ("0a", "job_failed")
    assert json.loads(message.body) == {
        "key": "0a",
        "to": "ops",
        "event": "job_failed",
        "text": "job 1 failed",
        "count": 1,
        "unlisted": 0,
        "events": [{"at": "2027-01-15T08:00:00Z", "text": "job 1 failed"}],
    }


def test_a_digest_counts_what_it_does_not_list(wording: Wording) -> None:
    """The count includes events that are only counted; the text names twenty events, the list has all."""
    body = json.loads(
        compose("ops", "0a", "job_failed", texts(*(f"job {n} failed" for n in range(25))), 3).body
    )
    assert (body["count"], body["unlisted"], len(body["events"])) == (28, 3, 25)
    wording(body["text"])


def test_names_mention_nobody() -> None:
    """A name of a job cannot mention everybody in a chat, nor disguise a link; the list has the name as it is."""
    name = "<!channel> @here <https://evil.example|log in>"
    body = json.loads(compose("ops", "0a", "job_failed", texts(name), 0).body)
    assert not set("<>@") & set(body["text"])
    assert body["events"][0]["text"] == name


def test_events_fit_into_a_message() -> None:
    """A message has at least one event, and no more bytes of events than the limit."""
    assert fitting(["a"] * 10) == 10
    assert fitting(["a" * EVENTS_BYTES_MAX, "b"]) == 1
    assert fitting(["a" * (EVENTS_BYTES_MAX + 1)]) == 1
