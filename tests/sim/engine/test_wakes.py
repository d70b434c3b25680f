"""When the agents of simulated nodes are woken: not before they need to be."""

from __future__ import annotations

import math

from scheduler.model.cluster import NodeSpec
from scheduler.sim.engine.node import Node
from scheduler.sim.engine.wakes import Wakes
from worker_agent.core.messages import Desired, Limits, Order, Renewed

LIMITS = Limits(late_s=1.0)


def _node(name: str, ends_s: float) -> Node:
    """A node with a lease that ends at this time."""
    node = Node(NodeSpec(name=name, worker_type="v100", gpus=1), LIMITS)
    node.core.handle(0.0, Desired(1, 1, (Order("1", "job", 1, (0,), ends_s),)))
    return node


def test_a_wake_that_a_renewal_made_early_is_put_off() -> None:
    """The node with the renewed lease is not woken; the other one gets its Tick."""
    wakes = Wakes()
    renewed, ending = _node("a", 360.0), _node("b", 360.0)
    for node in (ending, renewed):
        wakes.put(361.0, node)
    renewed.core.handle(100.0, Renewed(1, 1, 1, 720.0))
    assert wakes.next_s() == 361.0
    assert wakes.take(361.0) == [ending]
    assert wakes.next_s() == 721.0
    assert renewed.wake_s == 721.0


def test_the_last_wake_of_a_node_counts() -> None:
    """A node has one wake: a later one, or none, replaces it."""
    wakes = Wakes()
    node = _node("a", 50.0)
    wakes.put(60.0, node)
    wakes.put(51.0, node)
    assert wakes.take(51.0) == [node]
    assert wakes.next_s() == math.inf
    wakes.put(math.inf, node)
    assert wakes.next_s() == math.inf
