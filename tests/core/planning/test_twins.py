"""Caches beside the state decide nothing: after every batch a scheduler is compared with one that has none.

The other one is restored for each batch of messages from a snapshot of the state, like a process that takes over:
its facts, its effects and its state afterwards must be the same. The stories are those of test_any_story.py, with
operators who keep changing the settings. STORIES=500 plays more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from scheduler.core.core import Core
from scheduler.core.effects import Effect, Reply
from scheduler.core.messages import (
    Configure,
    GiveRates,
    JobCommand,
    Message,
    NodeReport,
    SetPolicy,
    SetPrices,
    SubmitJobs,
)
from scheduler.core.outcome import Outcome
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.problem import build
from scheduler.core.planning.round_inputs import at_boundary, in_mid_round
from scheduler.core.snapshot import Snapshot
from scheduler.core.state import SchedulerState
from scheduler.journal.codec import encode_facts
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import Dependency, JobSpec
from scheduler.model.lease import SENT, Bundle, Holding, Lease
from scheduler.sim.engine.physics import JobTruth
from tests.support.chaos import HORIZON_S, NODES, Chaos
from tests.support.core_world import WatchedCore
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]

STORIES = int(os.environ.get("STORIES", "8"))
OWN_DISKS = tuple(node(spec.name, spec.gpus, spec.worker_type, storage="") for spec in NODES[:2])
POLICIES = ("las", "las+packing", "fifo", "makespan", "min_cost", "gandiva", "finish_time_fairness")
CHANGES: tuple[dict[str, Any], ...] = (
    *({"restart_cost_s": 0.0}, {"restart_cost_s": 60.0}, {"learn_rates": False}, {"learn_rates": True}),
    *({"consolidated_rates": True}, {"consolidated_rates": False}, {"fill_mid_round": True}),
    *({"half_life_rounds": 5.0}, {"stay_rounds": 0.0}, {"speed": {"v100": 3.0}}, {"prior_rate": 3.0}),
    *({"round_s": 200.0}, {"round_s": 360.0}, {"trust_after_s": 600.0}, {"trust_after_s": 10.0}),
)
SORTS: tuple[dict[str, Any], ...] = (
    *({"worker_types": ("k80",)}, {"excluded_worker_types": ("v100",)}, {"nodes": ("n1",)}, {"cpus": 4.0}),
    *({"restart_cost_s": 100.0}, {"rates": {"v100": 3.0}}, {"weight": 5.0}, {"worker_types": ("h100",)}),
    *({"gpus": 9}, {"worker_types": ("v100",), "gpus": 2}, {"job_type": "new"}),
)


def in_words(value: Any) -> Any:
    """Return the value in a form that `==` compares: arrays as text, so that NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if is_dataclass(value):
        return [(field.name, in_words(getattr(value, field.name))) for field in fields(value) if field.init]
    return repr(value)


def truth_of(state: SchedulerState) -> Snapshot:
    """Return the part of a state that a snapshot keeps."""
    return msgspec.msgpack.decode(state.snapshot(), type=Snapshot)


def copy_of(kinds: Kinds) -> Kinds:
    """Copy the cache, so that using the copy leaves the original unchanged."""
    copied = copy(kinds)
    copied.ways, copied.rates, copied.paired = dict(kinds.ways), dict(kinds.rates), dict(kinds.paired)
    copied.frame = copy(kinds.frame)
    return copied


class Twins(WatchedCore):
    """A core that hands every batch also to another core, which has the same state and no caches."""

    compared = 0

    def handle_all(self, now_s: float, messages: Sequence[Message]) -> Outcome:
        """Handle the batch with both cores; facts, effects, state and the next question are the same."""
        heir = Core(SchedulerState.restore(self.state.snapshot()))
        expected, outcome = heir.handle_all(now_s, messages), super().handle_all(now_s, messages)
        self.compared += len(messages)
        assert encode_facts(outcome.facts) == encode_facts(expected.facts)
        assert self.words(outcome.effects) == self.words(expected.effects)
        assert truth_of(self.state) == truth_of(heir.state)
        assert self.questions(copy_of(self._kinds)) == self.questions(Kinds())
        return outcome

    def questions(self, kinds: Kinds) -> list[Any]:
        """Return the question that a solver would get now, and the inputs of a round planned now."""
        state = self.state
        return [
            in_words(at_boundary(state, kinds, state.now_s, state.round.ends_s)),
            in_words(in_mid_round(state, kinds, state.now_s)),
            [in_words(part) for part in build(state, kinds, state.now_s)],
        ]

    @staticmethod
    def words(effects: Iterable[Effect]) -> list[Any]:
        """Return the effects in a form that can be compared."""
        return [in_words(effect) for effect in effects]


class Restless(Chaos):
    """A story with operators who change prices, rates, policies and settings, and jobs that run on few nodes."""

    def __init__(self, seed: int) -> None:
        self.whims = whims = Random(f"whims/{seed}")
        nodes: Sequence[NodeSpec] = (*OWN_DISKS, *NODES[2:]) if whims.random() < 0.5 else NODES
        super().__init__(seed, nodes=nodes)
        self.core = self.stage.core = Twins()
        for number in range(25):
            self.stage.world.at(whims.uniform(0, HORIZON_S), self.whim)
            if number % 3 == 0:
                self.choosy(f"choosy{number}")

    def choosy(self, name: str) -> None:
        """Submit a job that only some nodes can run."""
        spec = JobSpec(
            name=name, steps=self.whims.uniform(100, 4000), **{"job_type": "lm", **self.whims.choice(SORTS)}
        )
        truth = JobTruth(job_type="lm", gpus=spec.gpus, steps_total=spec.steps or 0.0)
        self.stage.world.submit(self.whims.uniform(0, HORIZON_S), [spec], truth)

    def whim(self, now_s: float) -> list[Message]:
        """Change a price, rate, policy or setting."""
        whims, kind = self.whims, self.whims.choice(("v100", "k80"))
        settings = msgspec.structs.replace(self.stage.state.settings, **whims.choice(CHANGES))
        rate = (whims.choice(("cnn", "lm")), whims.choice((1, 2, 3)), kind, whims.choice((0.0, 1.0, 12.0)))
        pair = (kind, "cnn", "lm", 1, whims.uniform(0, 9), whims.uniform(0, 3))
        broken = NodeReport(node=whims.choice(NODES).name, generation=0, broken_gpus=(whims.randint(0, 1),))
        return [
            whims.choice(
                (
                    SetPolicy(policy=whims.choice(POLICIES)),
                    SetPrices(price_per_gpu_hour={kind: whims.uniform(0, 4)}),
                    Configure(settings=settings),
                    Configure(settings=settings),
                    GiveRates(solo=[rate], pairs=[pair]),
                    broken,
                )
            )
        ]


@pytest.mark.parametrize("seed", range(STORIES))
def test_a_scheduler_without_caches_decides_the_same(seed: int) -> None:
    """No value that was computed before a change is used after it."""
    story = Restless(seed)
    story.stage.until(HORIZON_S)
    assert story.core.compared == story.core.messages > 0, "every message is watched, reports too"


def test_the_older_of_two_leases_comes_first_also_if_it_got_the_gpu_later() -> None:
    """The order is that of a restarted scheduler, which reads leases by their ids."""
    state, shared = SchedulerState(), Bundle(("1", "2"), "v100", 1)
    for name in ("12", "9"):
        lease = Lease(name, name, shared, 1, 1, ("n1:0",), 1, 360.0)
        state.leases[name] = Holding(lease=lease, phase=SENT, granted_s=0.0, bundle=shared)
        state.hold(state.leases[name])
    assert state.holders == SchedulerState.restore(state.snapshot()).holders == {"n1:0": ("9", "12")}


def test_dependencies_of_a_cancelled_job_stay(desk_of: DeskOf) -> None:
    """A dependency that ends after its dependent was cancelled stays listed, even with a restart in between."""
    desk = desk_of(node("n1", 1))
    (lease,) = desk.run(job())
    (second,) = desk.submit(job(after=(Dependency("1"),)))
    desk.tell(desk.now_s, JobCommand(job=second, action="cancel"))
    desk.settle()
    heir = Core(SchedulerState.restore(desk.core.state.snapshot()))
    report = NodeReport(node="n1", generation=0, exits=(exited(lease, "finished", 1000.0),))
    heir.handle(desk.now_s, report)
    desk.tell(desk.now_s, report)
    desk.settle()
    assert desk.job(second).blocked_by == heir.state.jobs[second].blocked_by == {"1"}


def test_of_two_equally_large_types_the_first_by_name_is_reported(desk_of: DeskOf) -> None:
    """The order in which nodes joined does not count: a restarted scheduler does not have it."""
    desk = desk_of(node("n1", 2), node("n2", 2, "k80"))
    desk.tell(desk.now_s, SubmitJobs(call="c", specs=(job(gpus=3),)))
    assert desk.expect(Reply).error.endswith(" 2 (k80)")
