"""The steps before the ranks of a run start: checkpoints, container, image, setup. Standard library only."""

from __future__ import annotations

import math
import os
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Step(NamedTuple):
    """One step, which a child of the shim carries out as the job's user. If it fails, no rank starts."""

    # As the beginning of a sentence about the step's end.
    name: str
    argv: list[str]
    env: dict[str, str]
    limit_s: float = math.inf
    # Arguments of `turn_into`.
    options: Mapping[str, Any] = MappingProxyType({})


def steps(start: dict[str, Any]) -> Iterator[Step]:
    """Yield the steps, in order."""
    first_rank = start["ranks"][0]
    argv, env = first_rank["argv"], first_rank["env"]
    limit_s = float(start.get("setup_limit_s") or math.inf)
    # The modules of a step are imported only by jobs that have this step.
    if checkpoints := start.get("own_checkpoints"):
        from worker_agent.shim.attempt_checkpoints import begin

        act = partial(begin, checkpoints["directory"], checkpoints["name"])
        # GAVEL_CHECKPOINT_DIR is left out: the child would make that directory, still empty, before the copy.
        yield Step("making its checkpoint directory", [], {"PATH": os.defpath}, options={"instead": act})
    if container := start.get("container"):
        from worker_agent.shim.containers import fetch, is_fetched

        # What is wrong with the container is reported before its image is fetched, which may take long.
        yield Step("checking the container", argv, env, options={"rehearse": True})
        if is_fetched(container):
            act = partial(fetch, container, env)
            yield Step("fetching the image", [], env, limit_s, {"instead": act})
    if start.get("setup"):
        yield Step("setup", start["setup"], env, limit_s)
