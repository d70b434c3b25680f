"""What is said about the plans of a job: the present one, the best other one, and those that ran out of memory."""

from __future__ import annotations

import pytest

from scheduler.core.messages import NodeHello
from scheduler.explain.reasons import explain
from scheduler.explain.wording import render
from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording


def plan(gpus: int, rate: float, worker_type: str = "v100") -> Plan:
    """A pipeline of so many stages."""
    return Plan(worker_type=worker_type, gpus=gpus, label=f"p{gpus}", rate=rate)


PLANS = (plan(1, 1.0), plan(2, 1.9), plan(4, 3.6))


def planned(*plans: Plan) -> JobSpec:
    """A job with these plans."""
    widths = [each.gpus for each in plans]
    return job(job_type="gpt", gpus=min(widths), gpus_max=max(widths), steps=1e6, plans=plans)


def test_the_plan_of_a_running_job_is_named_with_its_rates(wording: Wording) -> None:
    """Its label, rates and share, and the next one; once an attempt ran out of memory, the plan that was struck out."""
    desk = Desk(node("n1", 4))
    (lease,) = desk.run(planned(*PLANS))
    wording(render(explain(desk.core.state, "1", desk.now_s)))
    end = exited(lease, "failed", steps=0.0, code=1, detail="torch.OutOfMemoryError: CUDA out of memory.")
    desk.report(exits=(end,))
    desk.settle()
    wording(render(explain(desk.core.state, "1", desk.now_s)))
    desk.until(900.0)
    wording(render(explain(desk.core.state, "1", desk.now_s)))


def test_nodes_whose_agents_ignore_plans_are_named(wording: Wording) -> None:
    """Both when a plan waits for such nodes alone, and while a narrower plan runs on other nodes."""
    desk = Desk(node("n1", 4))
    desk.submit(planned(*PLANS))
    desk.tell(desk.now_s, NodeHello(spec=node("n1", 4, ignores_plans=True)))
    desk.until(900.0)
    wording(render(explain(desk.core.state, "1", desk.now_s)))
    desk.tell(desk.now_s, NodeHello(spec=node("n2", 2)))
    desk.until(1800.0)
    wording(render(explain(desk.core.state, "1", desk.now_s)))


@pytest.mark.parametrize(
    ("plans", "others"),
    [
        (PLANS, ({"v100": 1.0},) * 2),
        ((plan(1, 1.0), plan(2, 1.0)), ()),
        ((plan(1, 1.0),), ()),
        ((plan(1, 1.0), plan(1, 9.0, "h100")), ({"h100": 1.0},) * 9),
        ((plan(1, 1.0), plan(2, 9.0, "h100")), ()),
        ((plan(1, 1.0), plan(4, 1.0), plan(8, 9.0)), ({"v100": 1.0},) * 3),
    ],
)
def test_the_reason_for_the_plan(
    plans: tuple[Plan, ...], others: tuple[dict[str, float], ...], wording: Wording
) -> None:
    """A faster plan has its reason: its share, what it gives per GPU, who has the GPUs, or that there are too few."""
    desk = Desk(node("n1", 4), node("n2", 1, "h100"))
    for number, rates in enumerate(others):
        desk.submit(job(job_type=f"other{number}", rates=rates, steps=1e6))
    (name,) = desk.submit(planned(*plans))
    desk.until(400.0)
    text = render(explain(desk.core.state, name, desk.now_s))
    assert " runs by plan " in text, text
    wording(text[text.index("It runs by plan") :].partition("\n")[0])


def test_each_plan_has_its_own_groups(wording: Wording) -> None:
    """Free GPUs that are apart do not suit a plan that splits layers over all of them, whatever other plans need."""
    desk = Desk(node("n1", 4), node("n2", 1), node("n3", 1), node("n4", 1, "h100"))
    desk.run(job(gpus=2, gpus_together=2, rates={"v100": 1.0}, steps=1e6, preemptible=False))
    split = Plan(worker_type="v100", gpus=4, gpus_together=4, label="t4", rate=9.0)
    (name,) = desk.submit(planned(split, plan(2, 1.0, "h100")))
    desk.until(900.0)
    wording(render(explain(desk.core.state, name, desk.now_s)))
