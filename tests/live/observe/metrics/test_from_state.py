"""Gauges of the state: every GPU and node is in one state; waits, shares and prices are those of the core."""

from __future__ import annotations

import os

import pytest

from scheduler.core.messages import NodeCommand, NodeSilent
from scheduler.core.state import SchedulerState
from scheduler.explain import Explanation, explain
from scheduler.live.job_feed import JobChanges
from scheduler.live.observe.metrics import from_state
from scheduler.live.observe.metrics.catalogue import GPU_STATES, Metrics
from scheduler.live.observe.metrics.from_state import StateGauges
from tests.support.chaos import HORIZON_S, Chaos
from tests.support.desk import Desk, exited, job, node

STORIES = int(os.environ.get("STORIES", "16"))


def metrics_of(state: SchedulerState, now_s: float) -> Metrics:
    """Return metrics whose gauges were updated once."""
    metrics = Metrics("0")
    StateGauges(metrics, state, JobChanges(state).states).update(now_s)
    return metrics


@pytest.mark.parametrize("seed", range(6100, 6100 + STORIES // 4))
def test_each_gpu_is_in_one_state(seed: int) -> None:
    """In the middle of any story, the GPUs of all states are all GPUs, and those held are those with holders."""
    story = Chaos(seed)
    story.stage.until(story.luck.uniform(0, HORIZON_S))
    state = story.stage.core.state
    metrics = metrics_of(state, state.now_s)
    gpus = metrics.gpus.values
    assert sum(gpus.values()) == sum(node.spec.gpus for node in state.nodes.values())
    assert all(count >= 0 for count in gpus.values())
    assert sum(count for (_, name), count in gpus.items() if name == "held") == len(state.holders)
    assert {name for _, name in gpus} <= set(GPU_STATES)
    assert sum(metrics.nodes.values.values()) == len(state.nodes)
    assert sum(metrics.jobs.values.values()) == len(state.jobs)


def test_gpus_of_nodes_that_get_no_work() -> None:
    """GPUs are held, broken, unreachable, drained or free, in this order."""
    desk = Desk(node("n1", 3), node("n2", 2), node("n3", 2), node("k1", 2, "k80"))
    desk.report("n1", broken_gpus=(2,))
    desk.settle()
    desk.run(job(gpus=2, worker_types=("v100",), nodes=("n1",)))
    desk.tell(desk.now_s, NodeSilent(node="n2"))
    desk.settle()
    desk.tell(desk.now_s, NodeCommand(node="n3", action="drain", user="ann"))
    desk.settle()
    gpus = {
        labels: count
        for labels, count in metrics_of(desk.core.state, desk.now_s).gpus.values.items()
        if count
    }
    assert gpus == {
        ("v100", "held"): 2,
        ("v100", "broken"): 1,
        ("v100", "unreachable"): 2,
        ("v100", "drained"): 2,
        ("k80", "free"): 2,
    }


def test_the_oldest_wait_has_its_reason() -> None:
    """The job that has waited longest for its first start counts; jobs that may not start yet do not."""
    desk = Desk(node("n1", 1))
    desk.run(job())
    desk.submit(job(earliest_start_s=1e6))
    desk.submit(job())
    submitted_s = desk.now_s
    desk.until(submitted_s + 50.0)
    desk.submit(job())
    waits = metrics_of(desk.core.state, desk.now_s).oldest_wait.values
    assert waits == {("waiting_for_allocation",): 50.0}


def test_a_wait_is_explained_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of the present job, round and allocation, and is not looked for in between."""
    explained: list[str] = []

    def counting(state: SchedulerState, job: str, now_s: float) -> Explanation:
        explained.append(job)
        return explain(state, job, now_s)

    monkeypatch.setattr(from_state, "explain", counting)
    desk = Desk(node("n1", 1))
    desk.run(job())
    (waits,) = desk.submit(job())
    gauges = StateGauges(Metrics("0"), desk.core.state, JobChanges(desk.core.state).states)
    for _ in range(3):
        gauges.update(desk.now_s)
    assert explained == [waits]
    desk.until(400.0)
    gauges.update(desk.now_s)
    assert len(explained) == 2


def test_nothing_waits() -> None:
    """Without waiting jobs there is no oldest wait, and no free GPU is wanted."""
    desk = Desk(node("n1", 2))
    desk.run(job())
    metrics = metrics_of(desk.core.state, desk.now_s)
    assert metrics.oldest_wait.values == {}
    assert metrics.idle_with_queue.values == {(): 0}


def test_free_gpus_that_a_waiting_job_could_use() -> None:
    """Free GPUs count only if a waiting job may use their type."""
    desk = Desk(node("n1", 1), node("k1", 2, "k80"))
    desk.run(job(worker_types=("v100",)))
    for kind, idle in (("v100", 0), ("k80", 2)):
        desk.submit(job(worker_types=(kind,)))
        assert metrics_of(desk.core.state, desk.now_s).idle_with_queue.values == {(): idle}


def test_shares_and_prices_are_those_in_force() -> None:
    """A tenant is due what the allocation gives to its jobs, and has what they hold."""
    desk = Desk(node("n1", 2))
    desk.run(job(tenant="a"), job(tenant="b"))
    metrics = metrics_of(desk.core.state, desk.now_s)
    assert metrics.share_due.values == {("a", "v100"): pytest.approx(1), ("b", "v100"): pytest.approx(1)}
    assert metrics.share_received.values == {("a", "v100"): 1, ("b", "v100"): 1}
    assert set(metrics.price.values) == {("v100",)}


def test_a_tenant_that_holds_nothing_of_its_share_has_a_series() -> None:
    """Without it, an average over time would count only the times at which the tenant held something."""
    desk = Desk(node("n1", 1))
    desk.run(job(tenant="a"))
    desk.submit(job(tenant="b"))
    desk.until(desk.now_s + 400.0)
    metrics = metrics_of(desk.core.state, desk.now_s)
    assert metrics.share_due.values.keys() == {("a", "v100"), ("b", "v100")}
    assert sorted(metrics.share_received.values.values()) == [0, 1]


def test_nothing_is_due_once_all_jobs_have_ended() -> None:
    """No allocation follows that of the last jobs."""
    desk = Desk(node("n1", 1))
    (lease,) = desk.run(job(tenant="a"))
    gauges = StateGauges(metrics := Metrics("0"), desk.core.state, JobChanges(desk.core.state).states)
    gauges.update(desk.now_s)
    assert metrics.share_due.values
    desk.report(exits=(exited(lease, outcome="finished"),))
    desk.settle()
    gauges.update(desk.now_s)
    assert metrics.share_due.values == metrics.share_received.values == {}


def test_an_allocation_ages_only_while_it_is_outdated() -> None:
    """Shares are as young as the questions about them: while nothing changes, none has to be asked."""
    desk = Desk(node("n1", 2))
    desk.run(job())
    desk.until(desk.now_s + 100.0)
    assert metrics_of(desk.core.state, desk.now_s).allocation_age.values == {(): 0.0}
    adopted_s = desk.core.state.adopted_s
    desk.submit(job())
    assert metrics_of(desk.core.state, desk.now_s).allocation_age.values == {(): desk.now_s - adopted_s}


def test_tenants_beyond_the_limit_share_a_label() -> None:
    """A scrape stays small whatever users call their tenants, and nothing is lost from its sums."""
    desk = Desk(node("n1", 4))
    desk.submit(*[job(tenant=f"t{number}") for number in range(120)])
    desk.until(8.0)
    metrics = metrics_of(desk.core.state, desk.now_s)
    due = metrics.share_due.values
    assert len(due) == 101
    assert sum(due.values()) == pytest.approx(4, rel=1e-4)
    assert "gavel_metrics_folded_tenants 20.0" in metrics.text()


def test_gpus_that_jobs_leave_idle() -> None:
    """They count by type once the agent has reported them idle for long; every type has a series."""
    desk = Desk(node("n1", 2), node("k1", 1, "k80"), idle_after_s=600.0)
    (lease,) = desk.run(job(gpus=2, worker_types=("v100",)))
    desk.until(desk.now_s + 1000.0)
    counts = []
    for idle_s in (599.0, 601.0, 0.0):
        desk.report(idle_s={lease: idle_s})
        desk.settle()
        counts.append(metrics_of(desk.core.state, desk.now_s).idle_held.values)
    none = {("v100",): 0, ("k80",): 0}
    assert counts == [none, none | {("v100",): 2}, none]


def test_a_gpu_that_one_of_two_jobs_uses_is_not_idle() -> None:
    """Two packed jobs hold the same GPU: it counts, once, if both leave it idle."""
    desk = Desk(node(gpus=1), policy="las+packing", idle_after_s=600.0)
    desk.submit(job(steps=1e6), job(steps=1e6, job_type="lm"))
    desk.until(desk.now_s + 8.0)
    leases = [desk.job(name).lease or "" for name in ("1", "2")]
    desk.report(started=tuple(leases))
    desk.settle()
    assert desk.core.state.holders == {"n1:0": tuple(leases)}
    desk.until(desk.now_s + 1000.0)
    counts = []
    for idle in (leases[:1], leases):
        desk.report(idle_s=dict.fromkeys(idle, 601.0))
        desk.settle()
        counts.append(metrics_of(desk.core.state, desk.now_s).idle_held.values)
    assert counts == [{("v100",): 0}, {("v100",): 1}]
