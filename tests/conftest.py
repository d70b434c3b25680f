"""Settings for all tests: reproducible property tests, plots without a screen, and the fixture `wording`."""

import os
import signal

import hypothesis
import pytest

from tests.support.wording import pytest_addoption, pytest_sessionfinish, wording

__all__ = ["pytest_addoption", "pytest_sessionfinish", "wording"]

# Before anything imports matplotlib: the machines that run tests have no display.
os.environ.setdefault("MPLBACKEND", "Agg")

# Several schedulers run at once, so each takes a free port for its metrics.
os.environ.setdefault("GAVEL_SERVE_METRICS_LISTEN", "127.0.0.1:0")

# Tests that a shell runs in its background ignore Ctrl-C, and so do the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# "steady" gives the same examples on every machine, so that a failed run can be repeated, and has no
# deadlines for slow machines. To search for new examples: HYPOTHESIS_PROFILE=explore make test
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1_000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their argument: they may hold a time (gzip), so that workers that collect tests at
    different seconds would collect different names."""
    return argname if isinstance(val, bytes) else None
