"""A parallelisation plan: how a model and its batch are divided over the GPUs of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import BadPlan

# The schedules of `gavel.training.parallel` whose pipelines are empty at every update of the weights.
FLUSHING = ("gpipe", "1f1b", "interleaved")
SCHEDULES = (*FLUSHING, "2bw", "stash")

_PART = re.compile(r"(?P<letter>[tpdbv])(?P<number>[1-9][0-9]{0,8})|r|gpipe|2bw|stash")


@dataclass(frozen=True, slots=True, order=True)
class Plan:
    """A plan for tensor × pipeline × data GPUs.

    Each layer is divided over `tensor` GPUs, the layers over `pipeline` stages, and the batch over `data` replicas of
    the pipeline, each of which takes it in microbatches of so many samples. With several `chunks`, each GPU has that
    many smaller stages. With `recompute`, the forward computation is repeated before the backward one, so that its
    results need not be kept.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    microbatch: int = 1
    chunks: int = 1
    recompute: bool = False
    schedule: str = "1f1b"

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.tensor * self.pipeline * self.data

    @property
    def stages(self) -> int:
        """The number of parts into which the layers are cut."""
        return self.pipeline * self.chunks

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty at every update of the weights."""
        return self.schedule in FLUSHING

    @property
    def label(self) -> str:
        """The plan as text: `t8·p64·d6·b1·v2·r`."""
        parts = [f"t{self.tensor}", f"p{self.pipeline}", f"d{self.data}", f"b{self.microbatch}"]
        if self.chunks > 1:
            parts.append(f"v{self.chunks}")
        if self.recompute:
            parts.append("r")
        if self.schedule not in ("1f1b", "interleaved"):
            parts.append(self.schedule)
        return "·".join(parts)

    def microbatches(self, batch: int) -> int:
        """Return how many microbatches a replica takes per update; raise BadPlan if the batch cannot be divided."""
        size = self.data * self.microbatch
        if batch % size:
            lower, upper = batch // size * size, -(-batch // size) * size
            nearest = ", ".join(str(each) for each in (lower, upper) if each)
            raise BadPlan(
                f"batch {batch} on d={self.data}: {batch} is not a multiple of {self.data}·{self.microbatch}",
                place=self.label,
                hint=f"nearest: {nearest}",
            )
        return batch // size


def read_plan(label: str) -> Plan:
    """Return the plan of a label, with `·` or `-` between its parts. A part that is left out is 1."""
    numbers: dict[str, int] = {}
    words: dict[str, str] = {}
    for part in re.split(r"[·-]", label.strip()):
        match = _PART.fullmatch(part)
        key = "" if match is None else match["letter"] or ("r" if part == "r" else "schedule")
        if not key or key in numbers or key in words:
            raise BadPlan(
                f"'{label[:60]}' is not the label of a plan", hint="write parts such as t8-p64-d6-b1-v2-r"
            )
        if match is not None and match["letter"]:
            numbers[key] = int(match["number"])
        else:
            words[key] = part
    tensor, pipeline, data, microbatch, chunks = (numbers.get(letter, 1) for letter in "tpdbv")
    schedule = words.get("schedule", "interleaved" if chunks > 1 else "1f1b")
    return Plan(tensor, pipeline, data, microbatch, chunks, "r" in words, schedule)
