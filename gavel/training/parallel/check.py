"""The audit of a schedule: whether its messages can be exchanged, how long it takes, and what it keeps in memory.

Sends that wait for their receiver are the hardest case: what passes here runs with any transport, buffered or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gavel.training.errors import PlanError
from gavel.training.parallel.actions import Action, Actions, Kind

# By the kind of a message: the kind at its other end, and the computation whose output or input it is.
_OTHER_END = {
    Kind.SEND_ACTIVATION: Kind.RECEIVE_ACTIVATION,
    Kind.SEND_GRADIENT: Kind.RECEIVE_GRADIENT,
    Kind.RECEIVE_ACTIVATION: Kind.SEND_ACTIVATION,
    Kind.RECEIVE_GRADIENT: Kind.SEND_GRADIENT,
}
_OUTPUT_OF = {Kind.SEND_ACTIVATION: Kind.FORWARD, Kind.SEND_GRADIENT: Kind.BACKWARD}
_INPUT_OF = {Kind.RECEIVE_ACTIVATION: Kind.FORWARD, Kind.RECEIVE_GRADIENT: Kind.BACKWARD}


class Outcome(NamedTuple):
    """The figures of a schedule that can be run."""

    # The time until the last rank is done, if messages take no time.
    makespan: float
    # By rank: the most chunks of microbatches that are between forward and backward at a time.
    in_flight: tuple[int, ...]


def check_actions(ranks: Sequence[Actions], forward: float = 1.0, backward: float = 2.0) -> Outcome:
    """Run the ranks' actions; raise PlanError if some rank waits forever.

    `forward` and `backward` are the durations of the actions of one chunk. The makespan is that of sends that do not
    block and of inputs that are awaited where they are used, as the runner does it.
    """
    durations = {Kind.FORWARD: forward, Kind.BACKWARD: backward, Kind.UPDATE: 0.0}
    free, in_flight, peak = ([0.0] * len(ranks) for _ in range(3))
    # When the output of a computation was ready, and when the input of one arrived: by rank, kind, microbatch, chunk.
    ready: dict[tuple[int, Kind, int, int], float] = {}
    arrived: dict[tuple[int, Kind, int, int], float] = {}
    for rank, action, receipt in _in_a_possible_order(ranks):
        kind, microbatch, chunk, _, peer = action
        if receipt is not None:
            sent = ready[rank, _OUTPUT_OF[kind], microbatch, chunk]
            arrived[peer, _INPUT_OF[receipt.kind], microbatch, receipt.chunk] = sent
            continue
        key = (rank, kind, microbatch, chunk)
        free[rank] = ready[key] = max(free[rank], arrived.get(key, 0.0)) + durations[kind]
        in_flight[rank] += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.UPDATE: 0}[kind]
        peak[rank] = max(peak[rank], in_flight[rank])
    return Outcome(max(free, default=0.0), tuple(int(count) for count in peak))


def _in_a_possible_order(ranks: Sequence[Actions]) -> Iterator[tuple[int, Action, Action | None]]:
    """Yield all computations and messages; a message, once, by its sender, and with the action of its receiver.

    A message is exchanged when both of its ends have come to it.
    """
    position = [0] * len(ranks)
    # The ranks that may be able to go on.
    movable = list(range(len(ranks)))
    while movable:
        rank = movable.pop()
        while position[rank] < len(ranks[rank]):
            action = ranks[rank][position[rank]]
            if action.kind in _OTHER_END:
                peer = action.peer
                offered = ranks[peer][position[peer]] if position[peer] < len(ranks[peer]) else None
                expected = (_OTHER_END[action.kind], action.microbatch, rank)
                if offered is None or (offered.kind, offered.microbatch, offered.peer) != expected:
                    break
                if action.kind in _OUTPUT_OF:
                    yield rank, action, offered
                else:
                    yield peer, offered, action
                position[peer] += 1
                movable.append(peer)
            else:
                yield rank, action, None
            position[rank] += 1
    for rank, actions in enumerate(ranks):
        if position[rank] < len(actions):
            action = actions[position[rank]]
            raise PlanError(
                f"the schedule cannot be run: rank {rank} waits forever at the {action.kind.value} of microbatch "
                f"{action.microbatch}, with rank {action.peer}"
            )
