"""Facts as a few words each, and metrics that have heard them."""

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
    """Each call is a fact at a time in hours, told to the metrics at once."""

    def __init__(self, measure: tuple[int, int] | None = None) -> None:
        self.metrics = Metrics(measure)
        self.number = 0

    def tell(self, at_h: float, fact: f.Fact) -> None:
        """Any fact."""
        self.metrics.observe(at_h * HOUR_S, fact)

    def node(self, at_h: float, name: str, worker_type: str, gpus: int = 1) -> None:
        """A node joins."""
        self.tell(at_h, f.NodeJoined(spec=NodeSpec(name=name, worker_type=worker_type, gpus=gpus)))

    def node_moves(self, at_h: float, name: str, state: NodeState) -> None:
        """A node is lost, drained, back."""
        self.tell(at_h, f.NodeMoved(node=name, state=state))

    def prices(self, at_h: float, **price_per_gpu_hour: float) -> None:
        """Prices from now on."""
        self.tell(at_h, f.PricesSet(price_per_gpu_hour=price_per_gpu_hour))

    def rates(self, *rows: tuple[str, int, str, float]) -> None:
        """Rows of the throughput table."""
        self.tell(0.0, f.RatesGiven(solo=list(rows)))

    def submit(self, at_h: float, job: str, **spec: Any) -> None:
        """A job comes."""
        self.tell(at_h, f.JobSubmitted(job=job, spec=JobSpec(**spec)))

    def move(self, at_h: float, job: str, move: Move) -> None:
        """Something happens to a job."""
        self.tell(at_h, f.JobMoved(job=job, move=move))

    def adopt(self, at_h: float, shares: dict[tuple[str, str], float], isolated: float = 0.0) -> None:
        """An allocation of jobs alone: (job, type) → share."""
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
        """A round of six minutes."""
        self.number += 1
        ends_s = at_h * HOUR_S + 360
        self.tell(
            at_h, f.RoundPlanned(number=self.number, starts_s=at_h * HOUR_S, ends_s=ends_s, granted=granted)
        )

    def start(self, at_h: float, *leases: str) -> None:
        """Processes run."""
        self.tell(at_h, f.LeasesStarted(leases=leases))

    def close(
        self, at_h: float, lease: str, steps: float, ran_h: float, outcome: Outcome, restart_h: float = 0.0
    ) -> None:
        """Processes are gone."""
        stepping_s = (ran_h - restart_h) * HOUR_S
        end = Exit(lease, outcome, steps, steps, stepping_s, ran_h * HOUR_S)
        self.tell(at_h, f.LeaseClosed(exit=end))

    def run(self, from_h: float, to_h: float, lease: Lease, steps: float, outcome: Outcome) -> None:
        """A lease from its grant to its end."""
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
