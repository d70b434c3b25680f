"""The messages that channels receive: JSON with one event, or with several events of one kind. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

# The most bytes of the events in one message; the others wait for the next one.
EVENTS_BYTES_MAX = 200_000
# How many events the text of a message names; the list has all of them.
TEXT_EVENTS_MAX = 20
# Chat programs would take these characters in names of jobs for links, and for mentions of everybody.
_HARMLESS = str.maketrans("<>@", "‹›＠")


class Message(NamedTuple):
    """A message as it is sent, and sent again after a failure."""

    # The same in every try, so that a receiver can recognise a message that it has already.
    key: str
    event: str
    body: bytes


def compose(channel: str, key: str, event: str, details: Sequence[str], unlisted: int) -> Message:
    """Return a message with these events, each in JSON. `unlisted`: how many earlier ones are only counted."""
    events = [json.loads(text) for text in details]
    count = len(events) + unlisted
    texts = [str(entry["text"]) for entry in events[:TEXT_EVENTS_MAX]]
    if count > 1:
        texts.insert(0, f"{event}, {count:,} times:")
    if count > len(events[:TEXT_EVENTS_MAX]):
        texts.append(f"and {count - len(events[:TEXT_EVENTS_MAX]):,} more")
    body = {
        "key": key,
        # Not "channel", by which chats choose where to show a message.
        "to": channel,
        "event": event,
        "text": "\n".join(texts).translate(_HARMLESS),
        "count": count,
        "unlisted": unlisted,
        "events": events,
    }
    return Message(key, event, json.dumps(body).encode())


def fitting(details: Sequence[str]) -> int:
    """Return how many of these events, at least one, fit into one message."""
    left = EVENTS_BYTES_MAX
    for count, text in enumerate(details):
        left -= len(text)
        if left < 0:
            return max(count, 1)
    return len(details)
