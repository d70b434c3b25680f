"""What every test runs under: reproducible property tests, and plots without a screen."""

import os
import signal

import hypothesis
import pytest

from tests.support.wording import pytest_addoption, pytest_sessionfinish, wording

__all__ = ["pytest_addoption", "pytest_sessionfinish", "wording"]

# Before anything imports matplotlib: the machines that run tests have no display.
os.environ.setdefault("MPLBACKEND", "Agg")

# A shell that runs the tests in its background has Ctrl-C ignored, by them and by all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# "steady" gives the same examples on every machine, so that a red run can be run again; a slow
# machine is no failure. To go looking for new examples: HYPOTHESIS_PROFILE=explore make test
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1_000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes get no name of their own: they may hold a time (gzip), and workers that collect at
    different seconds would find different tests."""
    return argname if isinstance(val, bytes) else None
