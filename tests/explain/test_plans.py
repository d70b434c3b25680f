"""What is said about the plans of a job: the one by which it runs, and those that ran out of memory."""

from __future__ import annotations

from scheduler.explain.reasons import explain
from scheduler.explain.wording import render
from scheduler.model.plans import Plan
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

PLANS = tuple(
    Plan(worker_type="v100", gpus=gpus, label=f"p{gpus}", rate=rate)
    for gpus, rate in ((1, 1.0), (2, 1.9), (4, 3.6))
)


def test_the_plan_of_a_running_job_is_named_with_its_rates(wording: Wording) -> None:
    """Its label, rates and share; once an attempt ran out of memory, the plan that was struck out."""
    desk = Desk(node("n1", 4))
    spec = job(job_type="gpt", gpus=1, gpus_max=4, steps=1e6, plans=PLANS)
    (lease,) = desk.run(spec)
    wording(render(explain(desk.core.state, "1", desk.now_s)))
    end = exited(lease, "failed", steps=0.0, code=1, detail="torch.OutOfMemoryError: CUDA out of memory.")
    desk.report(exits=(end,))
    desk.settle()
    wording(render(explain(desk.core.state, "1", desk.now_s)))
    desk.until(900.0)
    wording(render(explain(desk.core.state, "1", desk.now_s)))
