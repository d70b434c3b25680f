"""Plain values and messages have the same fields: every field of the protocol is in both."""

import json
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gavel import AsyncClient, Client
from gavel.client import results as r
from gavel.client.calls import JobFilter
from gavel.client.errors import Invalid
from gavel.client.jobs.spec import After, Container, JobSpec, Notify, Plan, Source, Terminal
from gavel.client.reading import moment, plain, read, spec_from_proto, spec_to_proto, stamp_of
from protos.gavel.v1 import cluster_pb2, history_pb2, jobs_pb2
from tests.support.wording import Wording

WHOLE = JobSpec(
    command=("python", "train.py"),
    script="",
    name="chat",
    job_type="lm",
    gpus=4,
    gpus_min=2,
    gpus_max=8,
    gpus_together=2,
    steps=1e6,
    weight=2.0,
    tenant="org/team",
    user="ada",
    deadline_s=3600.0,
    earliest_start_s=60.0,
    time_limit_s=7200.0,
    min_run_s=600.0,
    worker_types=("a100", "h100"),
    excluded_worker_types=("k80",),
    nodes=("n1",),
    labels={"rack": "r2"},
    cpus=16.0,
    memory_gb=64.0,
    gpu_memory_gb=40.0,
    retries=2,
    retries_node=3,
    retries_preemption=0,
    preemptible=False,
    packable=False,
    reports_steps=False,
    idle_ok=True,
    restart_cost_s=90.0,
    rates={"a100": 12.5},
    after=(After("17"), After("18", "ended")),
    array=(0, 2),
    max_cost=250.0,
    setup="pip install .",
    venv="/env",
    workdir="/shared",
    package="sha256:" + "0" * 64,
    env={"A": "1"},
    env_from={"T": "secret"},
    checkpoint_dir="/ck",
    ranks="per_node",
    checkpoints="per_attempt",
    setup_limit_s=1800.0,
    terminal=Terminal(tty=True, rows=30, columns=100, keep_s=60.0),
    container=Container("x", "podman", ("/a", "/b:/c:ro"), {"A": "1"}),
    outputs=("out/**",),
    plans=(Plan("a100", 2, "p2", 1.5, 20.0, "{}"),),
    plans_from="{}",
    notify=(Notify("ops", ("failed", "held")), Notify("ml")),
)


def test_a_spec_goes_there_and_back() -> None:
    """Full and empty specs are unchanged after conversion to a message and back; zero and false are kept."""
    for spec in (WHOLE, JobSpec(), JobSpec(script="x", retries=0, preemptible=True, gpus=1, steps=0.0)):
        assert spec == spec_from_proto(spec_to_proto(spec))


def test_every_field_of_the_protocol_can_be_set() -> None:
    """The full spec of this test sets every field of the message, so that a new field cannot be forgotten."""
    wire = spec_to_proto(WHOLE)
    unset = {field.name for field in wire.DESCRIPTOR.fields} - {field.name for field, _ in wire.ListFields()}
    assert unset == set()
    launch = {field.name for field in wire.launch.DESCRIPTOR.fields}
    assert launch - {field.name for field, _ in wire.launch.ListFields()} == {"script"}


def messages() -> list[tuple[Any, Any]]:
    """Return every kind of result with its message."""
    by_name = {**vars(jobs_pb2), **vars(cluster_pb2), **vars(history_pb2)}
    nested = {
        r.Place: jobs_pb2.Preview.Place,
        r.Share: cluster_pb2.Allocation.Share,
        r.Run: cluster_pb2.Round.Run,
        r.Limit: cluster_pb2.Tenant.Limit,
        r.UsageRow: cluster_pb2.Usage.Row,
        r.Account: history_pb2.Shares.Account,
        r.GpuTimeRow: history_pb2.GpuTime.Row,
        r.WholeTime: history_pb2.GpuTime.Whole,
        r.RoundPage: history_pb2.ListRoundsResponse,
        r.LeasePage: history_pb2.ListLeasesResponse,
        r.MatrixRow: cluster_pb2.Matrix.Row,
        r.MatrixCell: cluster_pb2.Matrix.Cell,
        r.JobPage: jobs_pb2.ListJobsResponse,
        r.NewToken: cluster_pb2.CreateTokenResponse,
        r.JoinToken: cluster_pb2.CreateJoinTokenResponse,
        r.RevokedNode: cluster_pb2.RevokeNodeResponse,
    }
    kinds = [kind for name in r.__all__ if is_dataclass(kind := getattr(r, name))]
    return [(kind, nested.get(kind) or by_name[kind.__name__]) for kind in kinds]


@pytest.mark.parametrize(("kind", "message"), messages(), ids=lambda kind: kind.__name__)
def test_every_result_has_the_fields_of_its_message(kind: Any, message: Any) -> None:
    """The names agree, and an empty message can be read, as from an older scheduler."""
    assert {field.name for field in fields(kind)} == {field.name for field in message.DESCRIPTOR.fields}
    empty = read(kind, message())
    json.dumps(plain(empty), allow_nan=False)


def test_states_of_a_newer_scheduler_are_unknown() -> None:
    """A state from a later release becomes UNKNOWN, not an error and not another state."""
    job = jobs_pb2.Job(id="1")
    job.state = 99  # type: ignore[assignment]
    assert read(r.Job, job).state is r.JobState.UNKNOWN
    assert read(r.Job, jobs_pb2.Job(state=jobs_pb2.JOB_STATE_HELD)).state is r.JobState.HELD
    assert not r.JobState.UNKNOWN.is_final


def test_times_keep_their_moment() -> None:
    """A time keeps its microsecond, whatever its zone; JSON has it in UTC."""
    at = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=2)))
    assert at == moment(stamp_of(at))
    assert plain(at) == "2030-01-02T01:04:05.678Z"
    assert moment(stamp_of(datetime(1969, 12, 31, tzinfo=UTC))) == datetime(1969, 12, 31, tzinfo=UTC)


def test_json_output_is_standard_json() -> None:
    """NaN and infinity become null, and the source of a job is left out."""
    allocation = cluster_pb2.Allocation(price_per_gpu={"a": float("nan"), "b": float("inf"), "c": 1.0})
    assert plain(read(r.Allocation, allocation))["price_per_gpu"] == {"a": None, "b": None, "c": 1.0}
    assert "source" not in plain(JobSpec(source=Source("f", 1)))


def test_progress_is_never_more_than_all() -> None:
    """Progress is at most 1, and None if the number of steps is unknown."""

    def progress(done: float, **values: Any) -> float | None:
        wire = jobs_pb2.Job(steps_done=done, **values)
        return read(r.Job, wire).progress

    assert progress(50.0, spec=jobs_pb2.JobSpec(steps=200.0)) == 0.25
    assert progress(300.0, spec=jobs_pb2.JobSpec(steps=200.0)) == 1.0
    assert progress(50.0) is None
    assert progress(0.0, state=jobs_pb2.JOB_STATE_COMPLETED) == 1.0


def test_a_filter_with_an_unknown_state(wording: Wording) -> None:
    """An unknown state is refused with those that exist."""
    with pytest.raises(Invalid, match=r"'sleeping'.*queued, running") as raised:
        JobFilter(states=["sleeping"]).to_proto()
    wording(raised.value)
    assert list(JobFilter(states=["held", r.JobState.FAILED]).to_proto().states) == [4, 6]


def test_both_clients_have_the_same_calls() -> None:
    """Both clients have the same calls with the same parameters and docstrings."""
    from inspect import signature

    def calls(kind: type) -> dict[str, Any]:
        return {
            name: call for name, call in vars(kind).items() if not name.startswith("_") and callable(call)
        }

    sync, asynchronous = calls(Client), calls(AsyncClient)
    assert set(sync) == set(asynchronous)
    for name, call in sync.items():
        assert signature(call).parameters == signature(asynchronous[name]).parameters, name
        assert call.__doc__ == asynchronous[name].__doc__, name


def test_every_name_of_the_client_is_there() -> None:
    """Every name is imported on its first use; an unknown name is an AttributeError."""
    import gavel.client

    assert [name for name in gavel.client.__all__ if not hasattr(gavel.client, name)] == []
    assert gavel.client.JobState is r.JobState
    with pytest.raises(AttributeError, match="'nothing'"):
        gavel.client.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_gavel_alone_is_cheap() -> None:
    """A script that imports gavel.training, or only JobSpec, imports neither grpc nor yaml."""
    import subprocess
    import sys

    code = """
import sys, gavel.training
from gavel import JobSpec
from gavel.client import JobState
print({'grpc', 'yaml', 'google.protobuf'} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="'nothing'"):
        __import__("gavel").nothing  # noqa: B018
