"""The benchmark of training on skewed data: numbers that would leave it without a result are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.skew import main


@pytest.mark.parametrize("option", ["--seeds", "--steps"])
@pytest.mark.parametrize("number", ["0", "-1"])
def test_no_seeds_and_no_steps_are_refused(
    option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option and its value, and comes before any training."""
    with pytest.raises(SystemExit) as refused:
        main([option, number])
    assert refused.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert f"{option}: {number} is too few" in output.err
