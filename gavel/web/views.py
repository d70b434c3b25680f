"""The addresses that no single method of the protocol answers: sessions, views of the mirror, words, logs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gavel.web.bodies import JSON
from gavel.web.streams import EVENT_STREAM

_LOG = {
    "attempt": "Only this attempt; 0 or absent: all.",
    "rank": "Only this rank; absent: all.",
}


class View(NamedTuple):
    """One verb and path, the name of the function that answers it, and its description."""

    verb: str
    path: str
    handler: str
    summary: str
    parameters: Mapping[str, str] = {}
    media_type: str = JSON

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))


VIEWS = (
    View("GET", "/session", "session", "Return the user and role that are signed in, and the cluster."),
    View(
        "POST", "/session", "sign_in", "Sign in with a token, or with the code of a gateway without tokens."
    ),
    View("DELETE", "/session", "sign_out", "Sign out: remove the cookie."),
    View("GET", "/v1/queue", "queue", "Return all unfinished jobs as columns, as of an event of /v1/events."),
    View("GET", "/v1/overview", "overview", "Return the figures of the cluster at a glance."),
    View("GET", "/v1/rounds/current", "current_round", "Return the round that runs."),
    View(
        "GET",
        "/v1/events",
        "events",
        "Stream what changes in the queue, the overview and the rounds.",
        {
            "after": "The event after which to begin, from /v1/queue; absent: now. Last-Event-ID goes before it."
        },
        EVENT_STREAM,
    ),
    View(
        "GET",
        "/v1/jobs/{job}/measured",
        "measured",
        "Return the rate of a packed job, and what a job has measured, as pairs of a name and a text for users.",
    ),
    View(
        "GET",
        "/v1/jobs/{job}/logs",
        "logs",
        "Stream the output of a job as events; without `follow`, at most 1 MiB of it.",
        {
            **_LOG,
            "tail_lines": "Only this many last lines; absent: 1,000.",
            "follow": "true: continue until the job has ended.",
            "after": "The event after which to continue; absent: from the last lines. Last-Event-ID goes before it.",
        },
        EVENT_STREAM,
    ),
    View(
        "GET", "/v1/jobs/{job}/logs.txt", "log_file", "Return the whole output of a job.", _LOG, "text/plain"
    ),
)
