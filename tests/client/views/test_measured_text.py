"""Values that a job has measured about itself, as `gavel show` words them."""

from __future__ import annotations

import pytest

from gavel.client.views.measured_text import measured_words

ALL = {
    "interval": 41.0,
    "step_s": 0.3,
    "overhead": 0.021,
    "loss_s": 15.0,
    "wait": 0.38,
    "final_save_s": 10.0,
    "start_s": 12.5,
    "load_s": 3.0,
}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, {}),
        ({"step_s": 0.3}, {}),
        (
            ALL,
            {
                "saves": "every 41 steps (12.3 s), costs 2.1%, at most 15 s are lost",
                "restart": "25.5 s: 10 s to save, 12.5 s to start, 3 s to load",
                "waits": "38.0% of the time for data",
            },
        ),
        ({"interval": 1.0, "final_save_s": 4.0}, {"saves": "every 1 step"}),
        ({"wait": 0.0}, {"waits": "0.0% of the time for data"}),
    ],
)
def test_only_what_was_measured_is_said(values: dict[str, float], words: dict[str, str]) -> None:
    """A value that is unknown has no words; a restart needs at least two of its parts."""
    assert dict(measured_words(values)) == words
