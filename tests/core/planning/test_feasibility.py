"""A job that no nodes can hold is refused with the field at fault, and with how much of it the cluster has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.effects import Reply
from scheduler.core.messages import SubmitJobs
from scheduler.core.planning.feasibility import must_fit_somewhere
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import Node, NodeSpec
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.launch import Launch, Terminal
from tests.support.desk import Desk, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def desk_with(desk_of: DeskOf) -> Desk:
    """Return a desk with two nodes of two v100, and one of one k80 with more of everything else."""
    v100 = {"cpus": 8.0, "memory_gb": 100.0, "gpu_memory_gb": 16.0}
    return desk_of(
        node("n1", labels={"rack": "a"}, **v100),
        node("n2", labels={"rack": "b", "disk": "ssd"}, **v100),
        node("n3", 1, "k80", cpus=32.0, memory_gb=10.0, gpu_memory_gb=40.0, labels={"rack": "b"}),
    )


@pytest.mark.parametrize(
    ("spec", "field", "named"),
    [
        ({"cpus": 1.0, "memory_gb": 999.0}, "memory_gb", "100 GB (v100)"),
        ({"cpus": 1.0, "labels": {"a": "b"}}, "labels", "label 'a'"),
        ({"cpus": 1.0, "labels": {"rack": "c"}}, "labels", "rack=c; "),
        ({"labels": {"rack": "a", "disk": "ssd"}}, "labels", "all of these"),
        ({"labels": {"disk": "ssd"}, "gpus": 3}, "labels", "2 of the 3"),
        ({"gpu_memory_gb": 1.0, "memory_gb": 999.0}, "memory_gb", "100 GB (v100)"),
        ({"gpu_memory_gb": 80.0}, "gpu_memory_gb", "40 GB"),
        ({"gpu_memory_gb": 40.0, "gpus": 2}, "gpu_memory_gb", "16 GB"),
        ({"cpus": 100.0}, "cpus", "32 (k80)"),
        ({"cpus": 100.0, "gpus": 3}, "cpus", "12 (v100)"),
        ({"cpus": 30.0, "memory_gb": 20.0}, "cpus", "that much memory"),
        ({"cpus": 9.0, "worker_types": ("v100",)}, "cpus", "these worker types"),
        ({"memory_gb": 60.0, "labels": {"rack": "b"}, "gpu_memory_gb": 30.0}, "memory_gb", "these labels"),
        ({"gpus": 4, "gpus_together": 4}, "gpus_together", "2 (v100)"),
        ({"gpus": 2, "gpus_together": 2, "worker_types": ("k80",)}, "gpus_together", "1 (k80)"),
        ({"gpus": 6, "gpus_together": 2}, "gpus", "groups of 2"),
        ({"gpus": 2, "gpus_together": 2, "cpus": 10.0}, "cpus", "8 (v100)"),
        ({"gpus": 4, "launch": Launch(terminal=Terminal())}, "gpus", "2 (v100)"),
        ({"gpus": 4, "gpus_together": 2, "labels": {"rack": "a"}}, "labels", "2 of the 4"),
    ],
)
def test_the_error_has_the_field_that_cannot_be_met(
    desk_of: DeskOf, spec: dict[str, Any], field: str, named: str, wording: Wording
) -> None:
    """The refusal names the field that cannot be met, alone or with the others, and not the first that is set."""
    desk = desk_with(desk_of)
    desk.tell(0, SubmitJobs(call="c", specs=(job(**spec),)))
    reply = desk.expect(Reply, code="invalid")
    assert named in reply.error
    wording(reply.error)
    assert reply.result == {"field": field}


AMOUNT = st.one_of(st.integers(1, 64).map(float), st.none())
NODE = st.builds(
    NodeSpec,
    name=st.uuids().map(str),
    worker_type=st.sampled_from(["a", "b"]),
    gpus=st.integers(1, 8),
    cpus=AMOUNT,
    memory_gb=AMOUNT,
    gpu_memory_gb=AMOUNT,
)


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(NODE, min_size=1, max_size=5),
    gpus=st.integers(1, 8),
    field=st.sampled_from(["cpus", "memory_gb", "gpu_memory_gb"]),
)
def test_the_amount_in_a_refusal_can_be_had(nodes: list[NodeSpec], gpus: int, field: str) -> None:
    """A job that asks for the amount in the refusal is accepted, and one that asks for a little more is not."""
    state = SchedulerState()
    for spec in nodes:
        state.nodes[spec.name] = Node(spec=spec)
        state.size_of_type[spec.worker_type] = state.size_of_type.get(spec.worker_type, 0) + spec.gpus
    job_of = partial(JobSpec, gpus=gpus)
    if max(state.size_of_type.values()) < gpus or any(getattr(spec, field) is None for spec in nodes):
        # Either too few GPUs are the only reason, or there is no limit.
        return
    with pytest.raises(InvalidSpec) as refused:
        must_fit_somewhere(state, job_of(**{field: 1e6}))
    assert refused.value.field == field
    most = float(refused.value.problem.partition("can have at most ")[2].split()[0].replace(",", ""))
    must_fit_somewhere(state, job_of(**{field: most}))
    with pytest.raises(InvalidSpec, match=field):
        must_fit_somewhere(state, job_of(**{field: most + 0.011}))
