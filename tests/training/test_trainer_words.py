"""The callbacks of trainers refuse the words of `every="auto"` that a LeasedIterator refuses, in the same sentence."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from gavel.training import LeasedIterator
from tests.training.test_iterator import Notes


@pytest.mark.parametrize("trainer", ["huggingface", "lightning"])
@pytest.mark.parametrize(
    "words",
    [
        {"every": "fast"},
        {"every": "auto", "overhead": 0},
        {"every": "auto", "overhead": 1},
        {"every": "auto", "overhead": float("nan")},
        {"every": "auto", "lose_at_most_s": 0},
        {"every": "auto", "lose_at_most_s": -600},
        {"every": "auto", "every_s": 600},
        {"overhead": 0.035},
        {"lose_at_most_s": 600},
    ],
    ids=lambda words: "-".join(f"{name}={value}" for name, value in words.items()),
)
def test_trainers_refuse_what_the_iterator_refuses(
    trainer: str, words: dict[str, Any], tmp_path: Path
) -> None:
    """The message is that of the iterator, and the callback has not touched its directory."""
    pytest.importorskip({"huggingface": "transformers", "lightning": "lightning"}[trainer])
    callback = importlib.import_module(f"gavel.training.{trainer}").LeaseCallback
    with pytest.raises(ValueError, match=list(words)[-1]) as expected:
        LeasedIterator("abc", checkpoint=Notes(), **words)
    with pytest.raises(ValueError, match=list(words)[-1]) as refused:
        callback(tmp_path / "out", **words)
    assert str(expected.value) == str(refused.value)
    assert not (tmp_path / "out").exists()
