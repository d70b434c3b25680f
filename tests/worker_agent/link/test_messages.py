"""Messages of the protocol and the agent's own values: no field of an order is left out."""

from __future__ import annotations

import pytest

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from worker_agent.core.messages import Container, Launch, Measured, Order, Outcome, ProcessExited, Report
from worker_agent.link.messages import launch_of, order_of, pack

# Fields of the protocol that an agent calls by another name.
RENAMED = {"ends_in_s": "ends_s", "gpus_total": "world_size", "master_address": "rendezvous"}

# Fields of the protocol that an agent does not use.
UNUSED = {"worker_type", "cpus", "memory_gb"}


def test_every_field_of_an_order_is_converted() -> None:
    """This fails if a field is added to the protocol, but not to the agent."""
    wire = {RENAMED.get(name, name) for name in pb.Order.DESCRIPTOR.fields_by_name}
    assert wire == set(Order.__struct_fields__) | UNUSED


def test_a_launch_arrives_whole() -> None:
    """Every field is taken over; secrets become references to files of the node."""
    wire = jobs_pb2.Launch(
        command=["a", "b"],
        script="c",
        setup="d",
        venv="/e",
        workdir="f",
        upload="g",
        env={"H": "i"},
        env_from={"J": "k"},
        checkpoint_dir="/l",
        ranks=jobs_pb2.Launch.RANKS_PER_NODE,
        checkpoints=jobs_pb2.Launch.CHECKPOINTS_PER_ATTEMPT,
        setup_limit_s=5.0,
        container=jobs_pb2.Container(image="m", runtime="podman", mounts=["/n", "/o:/p"], env={"Q": "r"}),
    )
    assert launch_of(wire) == Launch(
        command=("a", "b"),
        script="c",
        setup="d",
        venv="",
        workdir="f",
        upload="g",
        env={"H": "i"},
        env_from={"J": "secret:k"},
        checkpoint_dir="/l",
        ranks="per_node",
        checkpoints="per_attempt",
        setup_limit_s=5.0,
        container=Container(image="m", runtime="podman", mounts=("/n", "/o:/p"), env={"Q": "r"}),
    )


def test_an_order_arrives_whole() -> None:
    """Every field is taken over; its end counts from when it was sent, on the agent's clock."""
    wire = pb.Order(
        lease="17",
        job="12",
        attempt=2,
        gpus=[1, 2],
        ends_in_s=60.0,
        epoch=3,
        node_rank=1,
        nodes=2,
        gpus_total=4,
        master_address="10.0.0.1",
        steps_max=9.0,
        last=True,
        name="cnn",
        user="ann",
        rank_first=2,
        array_index=0,
        packed=True,
        extra_save_s=40.0,
        mtbf_s=7200.0,
        cpus=1.5,
        workers=6,
    )
    assert order_of(wire, 100.0) == Order(
        lease="17",
        job="12",
        attempt=2,
        gpus=(1, 2),
        ends_s=160.0,
        epoch=3,
        node_rank=1,
        nodes=2,
        world_size=4,
        rendezvous="10.0.0.1",
        steps_max=9.0,
        last=True,
        name="cnn",
        user="ann",
        rank_first=2,
        array_index=0,
        packed=True,
        extra_save_s=40.0,
        mtbf_s=7200.0,
        cpus=1.5,
        workers=6,
        launch=Launch(),
    )


def test_an_absent_field_has_its_default() -> None:
    """A missing limit means no limit, not 0."""
    order = order_of(pb.Order(lease="17"), 0.0)
    assert (order.steps_max, order.array_index, order.packed) == (None, None, False)
    assert launch_of(jobs_pb2.Launch()) == Launch()


def test_older_agents_can_read_the_record_of_an_order() -> None:
    """The files of a run keep these fields; the launch, which may be large, is not repeated there."""
    assert list(Order("17", "12", 1, (0,), 9.0, launch=Launch(command=("a",))).record()) == [
        *("lease", "job", "attempt", "gpus", "ends_s", "epoch", "node_rank", "nodes", "world_size"),
        *("rendezvous", "steps_max", "last", "mtbf_s"),
    ]


def test_the_scheduler_gets_measured_values() -> None:
    """Only those of leases that have any."""
    news = Measured("1", {"stall_s": 2.5})
    (packed,) = pack((Report(1, 0), Report(2, 0, measured=(news,))), 1, lambda lease: "")
    assert [(entry.lease, dict(entry.values)) for entry in packed.report.measured] == [
        ("1", {"stall_s": 2.5})
    ]


@pytest.mark.parametrize(
    ("outcome", "code", "printed", "sent"),
    [
        ("failed", 1, "KeyError: 'x'", True),
        ("yielded", 0, "CUDA out of memory", False),
        ("yielded", -15, "stopped", False),
        ("yielded", -15, "CUDA out of memory", True),
    ],
)
def test_the_scheduler_gets_the_last_lines_of_a_failure(
    outcome: Outcome, code: int, printed: str, sent: bool
) -> None:
    """Also those of a rank that ran out of memory, but was stopped, for a rank that had lost it, before it ended."""
    exit = ProcessExited("1", outcome, 0.0, 0.0, 0.0, 1.0, code)
    (packed,) = pack((Report(1, 0, (), (), (exit,)),), 1, lambda lease: printed)
    assert packed.report.exits[0].last_lines == (printed if sent else "")
