"""Schedules: the actions of every rank of a pipeline, in order. Pure, and without PyTorch.

A model is cut into stages. Rank r runs stage r; with several chunks it runs the stages r, r + p, r + 2p, … of p ranks.
A batch is divided into microbatches, which are counted from 0 over the whole job, as are the versions of the weights:
update u turns version u into version u + 1.

| schedule | order on a rank | version of microbatch k, at m microbatches an update |
|---|---|---|
| `gpipe` | all forward, then all backward | ⌊k/m⌋: the pipeline is empty at every update |
| `1f1b` | forward and backward in turn, after a warm-up | ⌊k/m⌋ |
| `interleaved` | as `1f1b`, with several chunks a rank | ⌊k/m⌋ |
| `2bw` | as `1f1b`, and the next batch follows at once | max(⌊k/m⌋ − 1, 0), on all ranks |
| `stash` | as `2bw` | max(⌊(k − w)/m⌋, 0) on the rank with w = p − 1 − r ranks behind it |

The version depends only on k, never on what happens to be the newest. So a pipeline may be drained after any update,
saved, and filled again, and computes what it would have computed without the pause.

Messages are in one global order, of which each rank's list holds its own part: a message enters both lists at the
moment at which it would be sent if a backward took twice as long as a forward. So blocking sends cannot deadlock, and
both ends of a pair agree on the order of their messages without tags.
"""

from __future__ import annotations

import enum
import heapq
from typing import NamedTuple

from gavel.training.errors import PlanError

FLUSHING = ("gpipe", "1f1b", "interleaved")
CONTINUOUS = ("2bw", "stash")
SCHEDULES = (*FLUSHING, *CONTINUOUS)


class Kind(enum.Enum):
    """The kinds of actions; the values are what messages to users call them."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND_ACTIVATION = "send of the activation"
    RECEIVE_ACTIVATION = "receipt of the activation"
    SEND_GRADIENT = "send of the gradient"
    RECEIVE_GRADIENT = "receipt of the gradient"
    UPDATE = "update"


class Action(NamedTuple):
    """One action of one rank."""

    kind: Kind
    # An update names the last microbatch whose gradient it contains.
    microbatch: int
    # The part of the rank's model, from 0.
    chunk: int
    # The version of the weights that is used; of an update, the version that it makes.
    version: int
    # The rank at the other end of a message; -1 for all other actions.
    peer: int = -1


Actions = tuple[Action, ...]

# How long actions take when the order of messages is decided.
_DURATION = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.UPDATE: 0}
_MESSAGES = {
    Kind.FORWARD: (Kind.SEND_ACTIVATION, Kind.RECEIVE_ACTIVATION),
    Kind.BACKWARD: (Kind.SEND_GRADIENT, Kind.RECEIVE_GRADIENT),
}


class Schedule(NamedTuple):
    """A schedule by name, for so many ranks, microbatches an update, and chunks a rank."""

    name: str
    stages: int
    microbatches: int
    chunks: int = 1

    def check(self) -> Schedule:
        """Return this schedule; raise PlanError if it cannot be run."""
        name, stages, microbatches, chunks = self
        if name not in SCHEDULES:
            raise PlanError(f"schedule is '{name}': expected one of {', '.join(SCHEDULES)}")
        for field, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
            if type(count) is not int or count < 1:
                raise PlanError(f"{field} is {count!r}: expected a whole number from 1 up")
        if name != "interleaved" and chunks != 1:
            raise PlanError(f"chunks is {chunks}: {name} has 1 chunk a rank; interleaved takes several")
        if name == "interleaved":
            if stages < 2 or chunks < 2:
                raise PlanError(
                    f"stages is {stages} and chunks {chunks}: interleaved needs at least 2 of each; "
                    "1f1b has 1 chunk a rank"
                )
            if microbatches % stages:
                nearest = stages * max(1, round(microbatches / stages))
                raise PlanError(
                    f"microbatches is {microbatches}: interleaved needs a multiple of its {stages} stages; "
                    f"nearest: {nearest}"
                )
        if name == "2bw" and microbatches < stages:
            raise PlanError(
                f"microbatches is {microbatches}: 2bw needs at least as many as its {stages} stages; nearest: {stages}"
            )
        return self

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty at every update."""
        return self.name in FLUSHING

    def version(self, rank: int, microbatch: int) -> int:
        """Return the version of the weights that a rank uses for a microbatch, forward and backward."""
        if self.name == "stash":
            return max(0, (microbatch - self.behind(rank)) // self.microbatches)
        batch = microbatch // self.microbatches
        return max(0, batch - 1) if self.name == "2bw" else batch

    def versions_kept(self, rank: int) -> int:
        """Return how many versions of the weights a rank has to keep at a time."""
        if self.name == "stash":
            return -(-self.behind(rank) // self.microbatches) + 1
        return 2 if self.name == "2bw" else 1

    def behind(self, rank: int) -> int:
        """Return how many ranks there are behind this one."""
        return self.stages - 1 - rank

    def neighbour(self, rank: int, chunk: int, forward: bool) -> tuple[int, int] | None:
        """Return the rank and chunk of the next stage, or of the one before; None at the end of the model."""
        stage = chunk * self.stages + rank + (1 if forward else -1)
        if not 0 <= stage < self.stages * self.chunks:
            return None
        return stage % self.stages, stage // self.stages


def actions_of(
    name: str, stages: int, microbatches: int, chunks: int = 1, updates: int = 1
) -> tuple[Actions, ...]:
    """Return each rank's actions for so many updates, from an empty pipeline to an empty one.

    Raise PlanError if the schedule cannot be run in this way, with the nearest number that would do.
    """
    schedule = Schedule(name, stages, microbatches, chunks).check()
    parts = [actions_of_step(schedule, step, filled=step) for step in range(updates)]
    parts.append(actions_of_drain(schedule, updates, filled=updates))
    return tuple(tuple(action for part in parts for action in part[rank]) for rank in range(stages))


def computations_of(
    name: str, stages: int, microbatches: int, chunks: int = 1, updates: int = 1
) -> tuple[Actions, ...]:
    """Return what `actions_of` returns, without the messages: all that the duration of a step depends on."""
    schedule = Schedule(name, stages, microbatches, chunks).check()
    ranks = []
    for rank in range(stages):
        steps = [_step(schedule, rank, step, filled=step) for step in range(updates)]
        ranks.append(
            tuple(action for step in [*steps, _drain(schedule, rank, updates, updates)] for action in step)
        )
    return tuple(ranks)


def actions_of_step(schedule: Schedule, step: int, filled: int) -> tuple[Actions, ...]:
    """Return each rank's actions that admit the batch of this step.

    A flushing schedule also finishes the batch and updates the weights. The others leave microbatches in flight for
    the next step; `filled` is the number of steps since the pipeline was empty.
    """
    return _with_messages(schedule, [_step(schedule, rank, step, filled) for rank in range(schedule.stages)])


def actions_of_drain(schedule: Schedule, step: int, filled: int) -> tuple[Actions, ...]:
    """Return each rank's actions that empty the pipeline after `step` steps, `filled` of them since it was empty."""
    return _with_messages(schedule, [_drain(schedule, rank, step, filled) for rank in range(schedule.stages)])


# ------------------------------------------------------------------------------------ the computations of a rank


def _step(schedule: Schedule, rank: int, step: int, filled: int) -> list[Action]:
    first = step * schedule.microbatches
    if schedule.flushes:
        return _flushing(schedule, rank, first)
    # The first microbatch since the pipeline was empty.
    began = first - filled * schedule.microbatches
    actions = []
    for microbatch in range(first, first + schedule.microbatches):
        actions.append(_compute(schedule, rank, Kind.FORWARD, microbatch))
        if microbatch - schedule.behind(rank) >= began:
            actions += _backward_and_update(schedule, rank, microbatch - schedule.behind(rank))
    return actions


def _drain(schedule: Schedule, rank: int, step: int, filled: int) -> list[Action]:
    if schedule.flushes:
        return []
    end = step * schedule.microbatches
    in_flight = min(schedule.behind(rank), filled * schedule.microbatches)
    return [
        action
        for microbatch in range(end - in_flight, end)
        for action in _backward_and_update(schedule, rank, microbatch)
    ]


def _flushing(schedule: Schedule, rank: int, first: int) -> list[Action]:
    """Return the computations of one batch: a warm-up, then backward and forward in turn, then the rest, backward."""
    name, stages, microbatches, chunks = schedule
    total = microbatches * chunks
    if name == "gpipe" or (name == "interleaved" and microbatches == stages):
        warm_up = total
    elif name == "1f1b":
        warm_up = schedule.behind(rank)
    else:
        warm_up = 2 * schedule.behind(rank) + (chunks - 1) * stages
    actions = []
    for turn in range(total + warm_up):
        if turn < total:
            microbatch, chunk = _turn(schedule, turn)
            actions.append(_compute(schedule, rank, Kind.FORWARD, first + microbatch, chunk))
        if warm_up <= turn:
            microbatch, chunk = _turn(schedule, turn - warm_up)
            actions.append(_compute(schedule, rank, Kind.BACKWARD, first + microbatch, chunks - 1 - chunk))
    last = first + microbatches - 1
    return [*actions, Action(Kind.UPDATE, last, 0, schedule.version(rank, last) + 1)]


def _turn(schedule: Schedule, turn: int) -> tuple[int, int]:
    """Return microbatch and chunk of a turn: groups of as many microbatches as there are ranks, chunk after chunk."""
    if schedule.chunks == 1:
        return turn, 0
    group, within = divmod(turn, schedule.stages * schedule.chunks)
    return group * schedule.stages + within % schedule.stages, within // schedule.stages


def _backward_and_update(schedule: Schedule, rank: int, microbatch: int) -> list[Action]:
    actions = [_compute(schedule, rank, Kind.BACKWARD, microbatch)]
    if (microbatch + 1) % schedule.microbatches == 0:
        actions.append(Action(Kind.UPDATE, microbatch, 0, microbatch // schedule.microbatches + 1))
    return actions


def _compute(schedule: Schedule, rank: int, kind: Kind, microbatch: int, chunk: int = 0) -> Action:
    return Action(kind, microbatch, chunk, schedule.version(rank, microbatch))


# ----------------------------------------------------------------------------------------------- the messages


def _with_messages(schedule: Schedule, computations: list[list[Action]]) -> tuple[Actions, ...]:
    """Insert the messages, in the order in which the computations would send them."""
    ranks = range(schedule.stages)
    lists: list[list[Action]] = [[] for _ in ranks]
    rest = [iter(actions) for actions in computations]
    upcoming = [next(actions, None) for actions in rest]
    idle = [True for _ in ranks]
    # The computations that wait for the output of another rank.
    missing = {_destination(schedule, rank, action) for rank in ranks for action in computations[rank]}
    running: list[tuple[int, int, Action]] = []

    def start(rank: int, now: int) -> None:
        action = upcoming[rank]
        if idle[rank] and action is not None and (rank, action) not in missing:
            idle[rank], upcoming[rank] = False, next(rest[rank], None)
            lists[rank].append(action)
            heapq.heappush(running, (now + _DURATION[action.kind], rank, action))

    for rank in ranks:
        start(rank, 0)
    while running:
        now, rank, action = heapq.heappop(running)
        idle[rank] = True
        destination = _destination(schedule, rank, action)
        if destination is not None:
            receiver, computation = destination
            send, receive = _MESSAGES[action.kind]
            lists[rank].append(action._replace(kind=send, peer=receiver))
            lists[receiver].append(computation._replace(kind=receive, peer=rank))
            missing.discard(destination)
            start(receiver, now)
        start(rank, now)
    return tuple(tuple(actions) for actions in lists)


def _destination(schedule: Schedule, rank: int, action: Action) -> tuple[int, Action] | None:
    """Return the rank and the computation that need the output of this one; None if no other rank does."""
    if action.kind is Kind.UPDATE:
        return None
    neighbour = schedule.neighbour(rank, action.chunk, forward=action.kind is Kind.FORWARD)
    if neighbour is None:
        return None
    receiver, chunk = neighbour
    return receiver, _compute(schedule, receiver, action.kind, action.microbatch, chunk)
