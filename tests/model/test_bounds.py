"""Limits: every numeric field has finite limits, and errors state them correctly."""

from __future__ import annotations

import math
import re
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.kinds import KINDS
from gavel.client.reading import spec_to_proto
from protos.files.errors import BadInput
from protos.files.nodes import Scalar
from protos.gavel.v1 import limits
from scheduler.live.access.people import PeopleConfig
from scheduler.live.config import DaemonConfig, Keeping
from scheduler.live.pace import Pace
from scheduler.live.wire.jobs import spec_from_wire
from scheduler.model import bounds, plans
from scheduler.model.bounds import Bound
from scheduler.model.cluster import NodeSpec
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.launch import Launch
from scheduler.model.settings import Settings
from tests.support.wording import Wording
from worker_agent.node.declared import parse_gpus

TABLES: list[tuple[type[msgspec.Struct], bounds.Table]] = [
    (JobSpec, bounds.JOB),
    (Launch, bounds.LAUNCH),
    (NodeSpec, bounds.NODE),
    (Settings, bounds.SETTINGS),
    (PeopleConfig, bounds.PEOPLE),
    (Pace, bounds.AGENTS),
    (Keeping, bounds.KEEPING),
    (DaemonConfig, bounds.DAEMON),
]
BOUNDS = [
    *(bound for _, table in TABLES for bound in table.values()),
    *(value for value in vars(bounds).values() if isinstance(value, Bound)),
]
HUGE = 10**5000


def is_number(hint: Any) -> bool:
    """Whether a field takes a number, or a number or None."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(map(is_number, get_args(hint)))
    return hint in (int, float)


@pytest.mark.parametrize(("kind", "table"), TABLES)
def test_every_number_has_its_limits(kind: type[msgspec.Struct], table: bounds.Table) -> None:
    """Every field for a number has limits, and every limit has a field."""
    assert set(table) == {name for name, hint in get_type_hints(kind).items() if is_number(hint)}


@pytest.mark.parametrize("bound", BOUNDS)
def test_limits_are_limits(bound: Bound) -> None:
    """Limits are finite and in order, and admit exactly the values between them."""
    assert -math.inf < bound.least < bound.most < math.inf
    assert bound.admits(bound.least)
    assert bound.admits(bound.most)
    for beyond in (math.nan, math.inf, -math.inf, 2 * bound.most, bound.least - abs(bound.least) - 1):
        assert not bound.admits(beyond)
    assert bound.admits(0) == (bound.zero or bound.least <= 0)


@given(st.sampled_from(BOUNDS), st.floats() | st.integers())
def test_the_nearest_possible_value(bound: Bound, value: float) -> None:
    """The nearest admitted value is admitted, and an admitted value is its own nearest."""
    nearest = bound.nearest(value)
    assert bound.admits(nearest)
    assert nearest == value or not bound.admits(value)


def test_a_refusal_has_the_value_and_the_limits(wording: Wording) -> None:
    """The error has the value, the limits and the unit."""
    with pytest.raises(InvalidSpec) as refused:
        bounds.check("memory_gb", 1e-308, bounds.MEMORY_GB)
    assert refused.value.field == "memory_gb"
    assert re.findall(r"[\d.,e-]*\d", str(refused.value)) == ["1e-308", "0", "0.001", "10,000,000"]
    wording(refused.value)


@pytest.mark.parametrize("value", [HUGE, -HUGE, math.nan, math.inf, 1.7e308, 5e-324], ids=range(6))
def test_a_refusal_is_short(value: float) -> None:
    """Even a number with too many digits for Python to print is refused in a short error."""
    with pytest.raises(InvalidSpec) as refused:
        bounds.check("gpus", value, bounds.GPUS)
    assert len(str(refused.value)) < 100


def test_agents_accept_the_gpus_that_the_scheduler_accepts() -> None:
    """The agent shares no code with the scheduler, but has the same limits."""
    assert parse_gpus("v100=1024:memory=1e7").gpus[0].memory_gb == bounds.MEMORY_GB.most
    assert parse_gpus("v100=1:memory=0.001").gpus[0].memory_gb == bounds.MEMORY_GB.least
    assert len(parse_gpus("v100=1024").gpus) == bounds.NODE["gpus"].most
    assert parse_gpus("v100=1:speed=1e6").speed == bounds.SPEED.most
    assert parse_gpus("v100=1:speed=0.001").speed == bounds.SPEED.least


def test_clients_and_the_scheduler_have_the_same_limits() -> None:
    """The core imports nothing of the protocol, so both define these limits, and they are equal."""
    assert limits.NAME_CHARS_MAX == bounds.NAME_CHARS_MAX
    assert limits.ENTRIES_MAX == bounds.ENTRIES_MAX
    assert bounds.GPUS.most == limits.GPUS_MAX
    assert bounds.COUNT.most == limits.COUNT_MAX
    assert bounds.INDEX.most == limits.INDEX_MAX
    assert bounds.ARRAY_MAX == limits.ARRAY_MAX
    assert plans.OUT_OF_MEMORY == limits.OUT_OF_MEMORY


def test_a_job_file_may_ask_for_no_cpus_and_no_memory() -> None:
    """0 means any amount, for the client as for the scheduler, whose bounds admit 0."""
    text = "command: [a]\ncpus: 0\nmemory: 0GB\ngpu_memory: 0GB\n"
    (job,) = parse_jobs(text, "job.yaml", Path("/shared"))
    spec = spec_from_wire(spec_to_proto(job)).checked()
    assert (spec.cpus, spec.memory_gb, spec.gpu_memory_gb) == (0, 0, 0)
    assert bounds.CPUS.admits(0)
    assert bounds.MEMORY_GB.admits(0)


@pytest.mark.parametrize(
    ("kind", "text", "limit"),
    [
        ("number or range", "2-99999999", "1,000,000"),
        ("number or range", "99999999", "1,000,000"),
        ("whole number", "99999999999", "1,000,000,000"),
        ("indices", "0-9999999999:99999", "1,000,000,000"),
        ("size", "1e400GB", "1.8e+308"),
        ("duration", "9" * 400 + "w", "1.8e+308"),
        ("duration or time", "9" * 400 + "w", "1.8e+308"),
    ],
)
def test_a_number_too_large_in_a_job_file_is_refused_with_the_limit(kind: str, text: str, limit: str) -> None:
    """The error has the limit, and does not explain how numbers are written."""
    with pytest.raises(BadInput) as refused:
        KINDS[kind].read(Scalar(text))
    assert limit in refused.value.problem
