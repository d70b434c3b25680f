"""Published and recomputed answers for the planner, read beside the project."""

import json
from functools import cache
from typing import Any

from tests.support.public_data import public_data


@cache
def planner_answers() -> dict[str, Any]:
    """Return the answers by topic."""
    text = public_data("reference/planner.json").read_text(encoding="utf-8")
    answers: dict[str, Any] = json.loads(text)["dev"]
    return answers
