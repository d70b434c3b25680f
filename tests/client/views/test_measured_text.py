"""Values that a job has measured about itself, as `gavel show` words them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.client.views.measured_text import measured_words
from scheduler.model.measured import MERGE

ALL = {
    "interval": 41.0,
    "step_s": 0.3,
    "overhead": 0.021,
    "loss_s": 15.0,
    "wait": 0.38,
    "final_save_s": 10.0,
    "start_s": 12.5,
    "load_s": 3.0,
    "bytes": 3e8,
}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, {}),
        ({"step_s": 0.3}, {}),
        (
            ALL,
            {
                "saves": "every 41 steps (12.3 s), 286 MiB each, costs 2.1%, at most 15 s are lost",
                "restart": "25.5 s: 10 s to save, 12.5 s to start, 3 s to load",
                "waits": "38.0% of the time for data",
            },
        ),
        ({"cached_bytes": 8e9, "data_bytes": 1e10}, {"data": "80% of it in the cache where the job runs"}),
        (
            {"cached_bytes": 1.03e10, "data_bytes": 1e10},
            {"data": "100% of it in the cache where the job runs"},
        ),
        ({"cached_bytes": 3e6}, {"data": "2.86 MiB in the cache where the job runs"}),
        # The caches of two nodes may hold the same part.
        (
            {"cached_bytes": 8e9, "data_bytes": 1e10, "cached_nodes": 2.0},
            {"data": "at most 80% of it in the caches where the job runs"},
        ),
        (
            {"cached_bytes": 3e6, "cached_nodes": 2.0},
            {"data": "at most 2.86 MiB in the caches where the job runs"},
        ),
        (
            {"cached_bytes": 0.0, "data_bytes": 1e10, "cached_nodes": 2.0},
            {"data": "0% of it in the cache where the job runs"},
        ),
        ({"sent_bytes": 3e6}, {"sends": "2.86 MiB a step, all ranks together"}),
        ({"interval": 1.0, "final_save_s": 4.0}, {"saves": "every 1 step"}),
        ({"wait": 0.0}, {"waits": "0.0% of the time for data"}),
        (
            {"wait": 0.4, "prep": 0.3, "fetch": 0.1},
            {"waits": "40.0% of the time for data: 30.0% preparation, 10.0% reading"},
        ),
        # The greatest parts of two ranks, one of which waits only for preparation, and the other only for reading.
        (
            {"wait": 0.4, "prep": 0.4, "fetch": 0.4},
            {"waits": "40.0% of the time for data: 20.0% preparation, 20.0% reading"},
        ),
        ({"wait": 0.0, "prep": 0.0, "fetch": 0.0}, {"waits": "0.0% of the time for data"}),
    ],
)
def test_only_what_was_measured_is_shown(values: dict[str, float], words: dict[str, str]) -> None:
    """A value that is unknown has no words; a restart needs at least two of its parts."""
    assert dict(measured_words(values)) == words


STARVED = {"wait": 0.38, "prep": 0.31, "fetch": 0.07, "gpu_rate": 10.0, "prep_rate": 7.6}
IN_LOOP = {"wait": 0.38, "prep": 0.31, "fetch": 0.07, "gpu_rate": 10.0, "workers": 0.0, "cached": 1.0}
SLOW_STORAGE = {
    "wait": 0.38,
    "prep": 0.03,
    "fetch": 0.35,
    "gpu_rate": 10.0,
    "prep_rate": 200.0,
    "cached": 0.0,
}


@pytest.mark.parametrize(
    ("values", "cpus", "end"),
    [
        (STARVED, 3.0, "; 6 CPUs instead of 3 would make it 1.6 x as fast"),
        (STARVED, None, "; twice the CPUs would make it 1.6 x as fast"),
        # Reading limits the job, and CPUs do not read.
        (SLOW_STORAGE, 3.0, "35.0% reading; all of its data in the node's cache would make it 1.6 x as fast"),
        ({**SLOW_STORAGE, "cached": 0.4}, None, "node's cache would make it 1.6 x as fast"),
        # It is in the cache already.
        ({**SLOW_STORAGE, "cached": 0.907}, 3.0, "35.0% reading"),
        (
            {**STARVED, "workers": 3.0, "useful_workers": 6.0},
            3.0,
            "fast; its next lease gets up to 6 loader workers instead of 3 (gavel.training.cpus())",
        ),
        # As many workers as help do not cure a wait, and a loop that hardly waits needs no others.
        ({**STARVED, "workers": 6.0, "useful_workers": 6.0}, 3.0, "fast"),
        ({**STARVED, "wait": 0.01, "workers": 3.0, "useful_workers": 4.0}, 3.0, "as fast"),
        # Unknown workers: it is unknown whether they would help.
        ({name: STARVED[name] for name in ("wait", "prep", "fetch", "gpu_rate")}, 3.0, "7.0% reading"),
        ({**STARVED, "wait": 1.0}, 3.0, "reading"),
        # A loop that loads its own data: its model takes 100 ms of a step of 161, 250 and 400 ms.
        (IN_LOOP, 3.0, "; its loop loads the data itself, and num_workers=1 would make it 1.6 x as fast"),
        ({**IN_LOOP, "wait": 0.6}, 3.0, "and num_workers=2 would make it 2.5 x as fast"),
        ({**IN_LOOP, "wait": 0.75}, None, "and num_workers=2 would make it 2.7 x as fast"),
        ({**IN_LOOP, "wait": 0.75}, 1.0, "and num_workers=1 would make it 1.3 x as fast"),
        (
            {"wait": 0.6, "gpu_rate": 10.0, "workers": 0.0},
            4.0,
            "and num_workers=2 would make it 2.5 x as fast",
        ),
        # One worker would still wait for reading, and the cache takes that away.
        (
            {**IN_LOOP, "wait": 0.75, "prep": 0.01, "fetch": 0.74, "cached": 0.0},
            1.0,
            "; all of its data in the node's cache would make it 3.8 x as fast",
        ),
        ({**IN_LOOP, "wait": 0.02}, 3.0, "0.4% reading"),
        ({**IN_LOOP, "wait": 1.0}, 3.0, "18.4% reading"),
        # Rates so small that they were recorded as 0.
        ({**IN_LOOP, "gpu_rate": 0.0}, 3.0, "7.0% reading"),
        ({**STARVED, "gpu_rate": 0.0}, 3.0, "7.0% reading"),
        ({**STARVED, "prep_rate": 0.0}, 3.0, "7.0% reading"),
    ],
)
def test_the_change_that_would_help_most_is_named(
    values: dict[str, float], cpus: float | None, end: str
) -> None:
    """Twice the CPUs where workers that prepare too slowly hold the model up; the cache where reading does."""
    assert dict(measured_words(values, cpus))["waits"].endswith(end)


NUMBERS = st.sampled_from([0.0, 1e-12, 1e-9, 0.5, 1.0, 1e18])
KEYS = {*MERGE, "useful_workers", "cached_bytes", "cached_nodes", "data_bytes"} - {"wait"}


@given(
    st.fixed_dictionaries({"wait": NUMBERS}, optional=dict.fromkeys(sorted(KEYS), NUMBERS)),
    st.sampled_from([None, 0.0, 0.001, 4.0]),
)
def test_all_numbers_that_a_job_may_report_have_words(values: dict[str, float], cpus: float | None) -> None:
    """Zeros, the smallest and the largest numbers under any keys, and any CPUs of the job: no error."""
    words = dict(measured_words(values, cpus))
    assert "nan" not in " ".join(words.values())
    assert words.keys() <= {"saves", "restart", "waits", "data", "sends"}
