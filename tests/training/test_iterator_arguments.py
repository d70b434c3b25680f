"""What `LeasedIterator` is given wrongly is refused by its name, where it is made."""

from pathlib import Path
from typing import Any

import pytest

from gavel.training import LeasedIterator
from gavel.training.errors import CheckpointError
from tests.training.test_iterator import Notes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"steps": -1}, "steps is -1: expected a whole number from 0 up"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": True}, "steps is True"),
        ({"every_steps": 0}, "every_steps is 0: expected a whole number from 1 up"),
        ({"every_s": 0}, "every_s is 0: expected seconds above 0"),
        ({"every_s": float("nan")}, "every_s is nan"),
    ],
)
def test_wrong_numbers_are_refused(words: dict[str, Any], said: str) -> None:
    """A number that cannot be meant is refused by its name."""
    with pytest.raises(ValueError, match=said):
        LeasedIterator("abc", checkpoint=Notes(), **words)


@pytest.mark.parametrize("wrong", [None, "checkpoints", Path("checkpoints")])
def test_what_is_no_checkpoint_is_refused_with_one_that_is(wrong: Any) -> None:
    """A path, or nothing at all, is what people try first."""
    with pytest.raises(
        TypeError, match=r"checkpoint is .*: expected something with load\(\) and save\(step\)"
    ):
        LeasedIterator("abc", checkpoint=wrong)


@pytest.mark.parametrize("step", [None, -1, 1.5, True, "3"])
def test_a_checkpoint_has_to_say_its_step(step: Any) -> None:
    """What load() returns is checked where it comes from."""
    with pytest.raises(CheckpointError, match="expected the step, 0 for a fresh start"):
        LeasedIterator("abc", checkpoint=Notes(step=step))
