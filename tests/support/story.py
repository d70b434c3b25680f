"""Facts in a few words each, and the metrics that count them."""

from __future__ import annotations

from typing import Any, Literal

from scheduler.core import facts as f
from scheduler.core.messages import Exit, Shares
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.lease import Bundle, Lease
from scheduler.sim.figures.metrics import Metrics

HOUR_S = 3600.0
Outcome = Literal["finished", "yielded", "failed", "node_failed"]


class Story:
    """Each call hands a fact, at a time in hours, to the metrics."""

    def __init__(self, measure: tuple[int, int] | None = None) -> None:
        self.metrics = Metrics(measure)
        self.number = 0

    def tell(self, at_h: float, fact: f.Fact) -> None:
        """Hand over any fact."""
        self.metrics.observe(at_h * HOUR_S, fact)

    def node(self, at_h: float, name: str, worker_type: str, gpus: int = 1) -> None:
        """Let a node join."""
        self.tell(at_h, f.NodeJoined(spec=NodeSpec(name=name, worker_type=worker_type, gpus=gpus)))

    def node_moves(self, at_h: float, name: str, state: NodeState) -> None:
        """Let a node be lost, drained, or back."""
        self.tell(at_h, f.NodeMoved(node=name, state=state))

    def prices(self, at_h: float, **price_per_gpu_hour: float) -> None:
        """Set the prices from now on."""
        self.tell(at_h, f.PricesSet(price_per_gpu_hour=price_per_gpu_hour))

    def rates(self, *rows: tuple[str, int, str, float]) -> None:
        """Set rows of the throughput table."""
        self.tell(0.0, f.RatesGiven(solo=list(rows)))

    def submit(self, at_h: float, job: str, **spec: Any) -> None:
        """Submit a job."""
        self.tell(at_h, f.JobSubmitted(job=job, spec=JobSpec(**spec)))

    def move(self, at_h: float, job: str, move: Move) -> None:
        """Move a job to another state."""
        self.tell(at_h, f.JobMoved(job=job, move=move))

    def adopt(self, at_h: float, shares: dict[tuple[str, str], float], isolated: float = 0.0) -> None:
        """Adopt an allocation of jobs alone: (job, type) → share."""
        jobs = tuple(dict.fromkeys(job for job, _ in shares))
        types = tuple(dict.fromkeys(kind for _, kind in shares))
        columns = Shares(
            jobs=jobs,
            worker_types=types,
            first=[jobs.index(job) for job, _ in shares],
            second=[-1] * len(shares),
            worker_type=[types.index(kind) for _, kind in shares],
            gpus=[1] * len(shares),
            share=list(shares.values()),
            isolated_rate=[isolated] * len(jobs),
        )
        self.tell(at_h, f.AllocationAdopted(number=1, policy="las", shares=columns))

    def plan(self, at_h: float, *granted: Lease) -> None:
        """Plan a round of six minutes."""
        self.number += 1
        ends_s = at_h * HOUR_S + 360
        self.tell(
            at_h, f.RoundPlanned(number=self.number, starts_s=at_h * HOUR_S, ends_s=ends_s, granted=granted)
        )

    def start(self, at_h: float, *leases: str) -> None:
        """Let leases start."""
        self.tell(at_h, f.LeasesStarted(leases=leases))

    def close(
        self, at_h: float, lease: str, steps: float, ran_h: float, outcome: Outcome, restart_h: float = 0.0
    ) -> None:
        """Let a lease end."""
        stepping_s = (ran_h - restart_h) * HOUR_S
        end = Exit(lease, outcome, steps, steps, stepping_s, ran_h * HOUR_S)
        self.tell(at_h, f.LeaseClosed(exit=end))

    def run(self, from_h: float, to_h: float, lease: Lease, steps: float, outcome: Outcome) -> None:
        """Let a lease run from its grant to its end."""
        self.plan(from_h, lease)
        self.start(from_h, lease.id)
        self.close(to_h, lease.id, steps, to_h - from_h, outcome)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Per-job figures by id."""
        self.metrics.settle()
        return {row["id"]: row for row in self.metrics.jobs.rows(self.metrics.now_s)}


def lease(name: str, job: str, worker_type: str, *gpus: str, with_job: str = "") -> Lease:
    """A lease, shared when another job is named."""
    jobs = tuple(sorted(filter(None, (job, with_job))))
    bundle = Bundle(jobs, worker_type, len(gpus))
    return Lease(name, job, bundle, 1, 1, gpus, 1, 0.0)
