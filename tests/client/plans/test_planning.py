"""Automatic plans are computed for the nodes of a cluster, within what the job allows."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.spec import AutoPlans, JobSpec, Plan
from gavel.client.plans.planning import planned
from gavel.client.reading import spec_from_proto, spec_to_proto
from gavel.client.results import Gpu, Node, NodeState
from planner.columns import KEPT_BELOW
from tests.support.wording import Wording

SHAPE = {"layers": 24, "hidden": 1024, "heads": 16, "sequence": 2048, "vocabulary": 51200}
AUTO = AutoPlans(SHAPE, batch=64, max_tensor=1)
GPT = JobSpec(command=("a",), job_type="gpt", plans=AUTO)
LAYER = {
    "name": "b0",
    "kind": "Block",
    "parameters": 1e6,
    "output_bytes": 1e5,
    "stored_bytes": 1e6,
    "flops": 1e9,
    "repeat": 8,
    "ms": {"v100": {"1": [1.0, 2.0], "8": [6.0, 12.0]}},
}
PROFILE = {
    "format": "gavel-profile/1",
    "model": "eight blocks",
    "dtype_bytes": 2,
    "gradient_bytes_per_parameter": 4,
    "optimizer_bytes_per_parameter": 12,
    "layers": [LAYER],
}


def node(name: str, worker_type: str, gpus: int, memory_gb: float = 0.0, **labels: str) -> Node:
    """A node with so many GPUs."""
    all_gpus = tuple(Gpu(i, "", "", memory_gb, 0.0, 0.0, "", (), False) for i in range(gpus))
    return Node(
        name=name,
        worker_type=worker_type,
        state=NodeState.UP,
        why="",
        since=None,
        gpus=all_gpus,
        labels=labels,
        cpus=0.0,
        memory_gb=0.0,
        agent_version="",
        storage="",
        heard=None,
        driver_version="",
        drained=False,
        speed=0.0,
        containment="",
    )


def plans_of(spec: JobSpec, *nodes: Node) -> tuple[Plan, ...]:
    """The plans of a job on these nodes."""
    (with_plans,), _ = planned([spec], nodes)
    assert not isinstance(with_plans.plans, AutoPlans)
    return with_plans.plans


def places(spec: JobSpec, *nodes: Node) -> list[tuple[str, int]]:
    """The types and widths of the plans of a job on these nodes."""
    return sorted((plan.worker_type, plan.gpus) for plan in plans_of(spec, *nodes))


def test_plans_are_for_the_nodes_of_the_cluster() -> None:
    """There is a plan for each type and useful width; its document is for the job's processes."""
    spec = replace(GPT, plans=replace(AUTO, max_tensor=None))
    plans = plans_of(spec, node("n1", "v100", 4), node("n2", "v100", 4), node("h1", "h100", 2))
    widths = {kind: [plan.gpus for plan in plans if plan.worker_type == kind] for kind in ("v100", "h100")}
    assert (max(widths["v100"]), max(widths["h100"])) == (8, 2)
    assert all(json.loads(plan.document)["label"] == plan.label for plan in plans)
    # A tensor group stays within a node.
    assert max(plan.gpus_together for plan in plans if plan.worker_type == "v100") <= 4


def test_plans_that_no_allocation_can_need_are_left_out() -> None:
    """No plan is far below a mix of the next narrower and the next wider one."""
    plans = plans_of(GPT, node("n1", "v100", 8), node("n2", "v100", 8))
    rates = {0: 0.0, **{plan.gpus: plan.rate for plan in plans}}
    widths = sorted(rates)
    for left, width, right in zip(widths, widths[1:], widths[2:], strict=False):
        line = rates[left] + (rates[right] - rates[left]) * (width - left) / (right - left)
        assert rates[width] >= (1 - KEPT_BELOW) * line


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"gpus": 4}, [("v100", 4)]),
        ({"gpus": 2, "gpus_min": 2, "gpus_max": 3}, [("h100", 2), ("v100", 2), ("v100", 3)]),
        ({"worker_types": ("h100",)}, [("h100", 1), ("h100", 2)]),
        ({"excluded_worker_types": ("v100",)}, [("h100", 1), ("h100", 2)]),
        ({"nodes": ("h1",), "gpus": 2}, [("h100", 2)]),
        ({"labels": {"rack": "r2"}, "gpus": 4}, [("v100", 4)]),
        ({"labels": {"rack": "r2"}, "gpus_together": 4}, [("v100", 4)]),
        ({"worker_types": ("v100",), "gpus_together": 3}, [("v100", 3), ("v100", 6)]),
        # GPUs of unknown memory count as large enough, so those of h1 are too small.
        ({"gpu_memory_gb": 40.0, "gpus": 2}, [("v100", 2)]),
    ],
)
def test_plans_are_for_the_gpus_that_the_job_may_use(
    fields: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    """The needs of the job limit what is planned; the ends of a range are planned, too."""
    nodes = node("n1", "v100", 4), node("n2", "v100", 4, rack="r2"), node("h1", "h100", 2, memory_gb=39.0)
    assert places(replace(GPT, **fields), *nodes) == expected


def test_declared_memory_counts() -> None:
    """A model that needs two of the GPUs that the nodes report has no plan for one."""
    assert ("v100", 1) in places(replace(GPT, gpus=1), node("n1", "v100", 2))
    with pytest.raises(InvalidJob, match="does not fit on 1 × v100"):
        plans_of(replace(GPT, gpus=1), node("n1", "v100", 2, memory_gb=6.0))
    assert places(GPT, node("n1", "v100", 2, memory_gb=6.0)) == [("v100", 2)]


def test_an_open_number_of_gpus_is_that_of_the_plans() -> None:
    """A given number stays; without one, the job runs at any width for which it has a plan."""
    nodes = [node("n1", "v100", 4)]
    (spec,), _ = planned([GPT], nodes)
    wire = spec_to_proto(spec)
    assert (wire.gpus_min, wire.gpus_max) == (min(p.gpus for p in wire.plans), 4)
    (spec,), _ = planned([replace(GPT, gpus=4)], nodes)
    assert (spec_to_proto(spec).gpus, spec_to_proto(spec).gpus_max) == (4, 0)
    assert spec_from_proto(wire).plans_from == wire.plans_from


def test_types_without_plans_are_noted(wording: Wording) -> None:
    """So are times that are estimated. Types that the planner does not know are left to jobs without plans."""
    spec = replace(GPT, plans=AutoPlans(PROFILE, 64))
    (with_plans,), notes = planned(
        [spec], [node("n1", "v100", 2), node("x1", "tpu", 4), node("h1", "h100", 1)]
    )
    assert {plan.worker_type for plan in with_plans.plans} == {"v100", "h100"}  # type: ignore[union-attr]
    wording("\n".join(notes))


def test_the_plans_of_a_profile_name_its_layers() -> None:
    """Their documents are those of `gavel plan --json`, with stages."""
    plans = plans_of(replace(GPT, plans=AutoPlans(PROFILE, 64), gpus=2), node("n1", "v100", 2))
    document = json.loads(plans[0].document)
    assert (sum(document["stages"]), len(document["layers"])) == (8, 8)


@pytest.mark.parametrize(
    ("spec", "nodes", "field"),
    [
        (GPT, [], "plan"),
        (replace(GPT, worker_types=("a100",)), [node("n1", "v100", 4)], "plan"),
        (GPT, [node("x1", "tpu", 4)], "plan"),
        (replace(GPT, gpus=16), [node("n1", "v100", 4)], "plan"),
        (replace(GPT, job_type=""), [node("n1", "v100", 4)], "job_type"),
        (replace(GPT, plans=AutoPlans({"layers": 2}, 64)), [node("n1", "v100", 4)], "plan"),
        (replace(GPT, plans=AutoPlans({"format": "x"}, 64)), [node("n1", "v100", 4)], "plan"),
        (replace(GPT, plans=AutoPlans({**SHAPE, "layers": set()}, 64)), [node("n1", "v100", 4)], "plan.auto"),
        (replace(GPT, plans=AutoPlans(SHAPE, 1, 1, "2bw"), gpus=4), [node("n1", "v100", 4)], "plan"),
    ],
)
def test_a_job_without_any_plan_is_refused(
    spec: JobSpec, nodes: list[Node], field: str, wording: Wording
) -> None:
    """The error says what is missing."""
    with pytest.raises(InvalidJob) as error:
        planned([spec], nodes)
    assert error.value.field == field
    wording(str(error.value))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """Plans need numpy; the error has the line that installs it."""
    monkeypatch.setitem(sys.modules, "gavel.plans", None)
    with pytest.raises(InvalidJob) as error:
        planned([GPT], [node("n1", "v100", 4)])
    assert error.value.field == "plan"
    wording(str(error.value))


def test_equal_jobs_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over learning rates has one model."""
    calls: list[str] = []
    jobs = [replace(GPT, name=name) for name in ("a", "b")]
    specs, _ = planned(jobs, [node("n1", "v100", 4)], lambda words, done, total: calls.append(words))
    assert calls == [f"planning for {gpus} × v100" for gpus in (1, 2, 4)]
    assert specs[0].plans is specs[1].plans
