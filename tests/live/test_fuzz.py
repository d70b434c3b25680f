"""A short fuzz of both ports, always the same; `python -m tests.fuzz` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import parsed, play


@pytest.mark.parametrize("tls", [False, True])
def test_the_scheduler_holds_against_random_calls_and_links(tls, tmp_path, capsys) -> None:
    """The scheduler keeps answering and logs no traceback; no call ends UNKNOWN, or INTERNAL without a number."""
    options = parsed(["--cases", "0-80", "--seed", "suite", *(["--tls"] if tls else [])])
    assert play(options, tmp_path / "s") == 0, capsys.readouterr().out
    assert "0 numbered internal errors" in capsys.readouterr().out
