"""The metrics agree with the scheduler's own state, which is computed in another way from the same facts."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from scheduler.core.apply import apply
from scheduler.core.facts import Fact, LeaseClosed
from scheduler.core.state import SchedulerState
from scheduler.model.lease import Holding
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.figures.summary import utilisation
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate


class Applied:
    """A journal that keeps the state instead of the facts."""

    def __init__(self) -> None:
        self.state = SchedulerState()
        # By job, the leases that ended because the job continues at another width.
        self.resized: Counter[str] = Counter()

    def append(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Apply the facts to the state."""
        for fact in facts:
            if isinstance(fact, LeaseClosed) and fact.exit.outcome == "yielded":
                self.note(self.state.leases[fact.exit.lease])
            apply(self.state, now_s, fact)

    def note(self, ended: Holding) -> None:
        """Count a lease that ends while its job already has the next one, of another width."""
        coming = self.state.leases.get(self.state.jobs[ended.lease.job].lease or "")
        if coming is not None and coming.lease.id != ended.lease.id:
            self.resized[ended.lease.job] += coming.bundle.gpus != ended.bundle.gpus

    def read(self) -> Iterator[tuple[float, Fact]]:
        """Return no facts."""
        return iter(())


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "las"},
        {"policy": "las+packing"},
        {"policy": "fifo", "comparison": True},
        {"policy": "las", "mtbf_h": 10.0, "repair_h": 0.5},
        {"policy": "las", "rate_noise": 0.3, "restart_s": 200.0, "checkpoint_s": 20.0},
    ],
)
def test_metrics_agree_with_the_state(change: dict[str, object]) -> None:
    """Ends, states, preemptions and starts agree; running time and cost too, except of losses never reported."""
    base: dict[str, object] = {"cluster": {"t4": 4, "a100": 8}, "workload": "mixed-day"}
    run = Run(**{**base, "rate_per_h": 8.0, "jobs": 25, **change})  # type: ignore[arg-type]
    kept = Applied()
    result = simulate(replace(prepare(run).options, journal=kept))
    rows = {row["id"]: row for row in result.metrics.jobs.rows(result.metrics.now_s)}
    assert list(rows) == list(kept.state.jobs)
    for name, job in kept.state.jobs.items():
        row = rows[name]
        assert row["state"] == job.state
        assert row["end_h"] == pytest.approx((job.ended_s or 0.0) / 3600)
        assert row["start_h"] == pytest.approx((job.started_s or 0.0) / 3600)
        # A lease that is stopped so that its job continues with more or fewer GPUs is no preemption to the core.
        assert row["preemptions"] - job.preemptions == kept.resized[name]
        if "mtbf_h" not in change:
            assert row["ran_h"] == pytest.approx(job.run_s / 3600)
        if "mtbf_h" not in change:
            assert row["cost_usd"] == pytest.approx(job.cost_usd)
    total = sum(job.cost_usd for job in kept.state.jobs.values())
    assert sum(row["cost_usd"] for row in rows.values()) == pytest.approx(total, rel=0.05)
    assert all(0 <= part <= 1 for part in utilisation(result.metrics).values() if part is not None)
    assert all(0.05 < row["rho"] < 50 for row in rows.values())


def test_gpu_time_adds_up() -> None:
    """Without packing, the busy time of GPUs is the sum of the time that jobs had."""
    run = Run(
        cluster={"t4": 4, "a100": 8},
        workload="mixed-day",
        rate_per_h=8.0,
        jobs=25,
        prices={"t4": 1, "a100": 1},
    )
    metrics = simulate(prepare(run).options).metrics
    busy_s, _ = metrics.gpus.totals(metrics.now_s)
    assert sum(busy_s) / 3600 == pytest.approx(metrics.jobs.numbers("cost_usd").sum())


def test_a_run_that_is_stopped_has_measured_all_that_happened() -> None:
    """Metrics take many records at once; a run that is stopped in between misses none of them."""
    run = Run(cluster={"t4": 4, "a100": 8}, workload="mixed-day", rate_per_h=8.0, jobs=25)
    kept = Applied()
    options = replace(prepare(run).options, journal=kept)
    result = simulate(options, progress=lambda metrics: metrics.ended < 3)
    assert result.interrupted
    assert result.metrics.now_s == kept.state.now_s
    rows = result.metrics.jobs.rows(result.metrics.now_s)
    assert {row["id"]: row["state"] for row in rows} == {j.id: j.state for j in kept.state.jobs.values()}


def test_an_interruption_within_a_record_ends_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C while the metrics take a record, they have everything before that record, and nothing after."""
    observe, moments = Metrics.observe_all, []

    def interrupted(metrics: Metrics, now_s: float, facts: Sequence[Fact]) -> None:
        moments.append(now_s)
        if len(moments) == 30:
            raise KeyboardInterrupt
        observe(metrics, now_s, facts)

    monkeypatch.setattr(Metrics, "observe_all", interrupted)
    run = Run(cluster={"t4": 4, "a100": 8}, workload="mixed-day", rate_per_h=8.0, jobs=150, ideal=True)
    result = simulate(prepare(run).options)
    assert result.interrupted
    assert len(moments) == 30
    assert result.metrics.now_s == moments[-2]
