"""`LeasedIterator` refuses wrong arguments by their names, at once."""

import re
from pathlib import Path
from typing import Any

import pytest

from gavel.training import LeasedIterator
from gavel.training.errors import CheckpointError
from tests.support.wording import Wording
from tests.training.test_iterator import Notes


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"steps": -1}, "steps is -1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": True}, "steps is True"),
        ({"every_steps": 0}, "every_steps is 0"),
        ({"every_s": 0}, "every_s is 0"),
        ({"every_s": float("nan")}, "every_s is nan"),
    ],
)
def test_wrong_numbers_are_refused(words: dict[str, Any], value: str, wording: Wording) -> None:
    """A number that must be a mistake is refused by its name."""
    with pytest.raises(ValueError, match=value) as refused:
        LeasedIterator("abc", checkpoint=Notes(), **words)
    wording(refused.value)


@pytest.mark.parametrize("wrong", [None, "checkpoints", Path("checkpoints")])
def test_an_object_that_is_no_checkpoint_is_refused(wrong: Any, wording: Wording) -> None:
    """A path, or no argument, is the first thing that users try."""
    with pytest.raises(TypeError, match=r"checkpoint .*load\(\).*save\(step\)") as refused:
        LeasedIterator("abc", checkpoint=wrong)
    wording(refused.value, path=re.compile(r"PosixPath\('checkpoints'\)"))


@pytest.mark.parametrize("step", [None, -1, 1.5, True, "3"])
def test_a_checkpoint_must_return_its_step(step: Any, wording: Wording) -> None:
    """The result of load() is checked right after the call."""
    with pytest.raises(CheckpointError, match=re.escape(repr(step))) as refused:
        LeasedIterator("abc", checkpoint=Notes(step=step))
    wording(refused.value)
