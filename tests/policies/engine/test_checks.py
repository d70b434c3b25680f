"""Refused problems: every error has the place of the fault, the field and the value."""

from dataclasses import replace

import numpy as np
import pytest

from policies.errors import PolicyError, ProblemError
from policies.problem import Columns, Jobs, Problem, Tenant
from tests.support.problems import alone, by_hand, together
from tests.support.wording import Wording

NAN, INF = float("nan"), float("inf")
GOOD = by_hand(
    {"v100": 2, "k80": 4}, alone("a", "v100", 4.0), alone("b", "v100", 3.0), alone("b", "k80", 1.0)
)


def refusal(build) -> str:
    """The text of the ProblemError that this raises."""
    with pytest.raises(ProblemError) as refused:
        build()
    return str(refused.value)


JOBS = [
    ("weight", [1, NAN], "job 'b': weight"),
    ("weight", [-1, 1], "job 'a': weight"),
    ("weight", [1, 0], "job 'b': weight"),
    ("weight", [1, INF], "job 'b': weight"),
    ("weight", [1, 1, 1], "jobs: weight"),
    ("weight", [[1, 1]], "jobs: weight"),
    ("weight", "heavy", "jobs: weight"),
    ("gpus", [1, 0], "job 'b': gpus"),
    ("gpus", [-2, 1], "job 'a': gpus"),
    ("gpus", [1, 1.5], "job 'b': gpus"),
    ("gpus", [NAN, 1], "job 'a': gpus"),
    ("gpus", [INF, 1], "job 'a': gpus"),
    ("gpus", [1], "jobs: gpus"),
    ("count", [3, 0], "job 'b': count"),
    ("waited_s", [0, -5], "job 'b': waited_s"),
    ("waited_s", [INF, 0], "job 'a': waited_s"),
    ("steps_left", [0, 9], "job 'a': steps_left"),
    ("steps_left", [9, NAN], "job 'b': steps_left"),
    ("isolated_s", [0, -1], "job 'b': isolated_s"),
    ("deadline_s", [NAN, 9], "job 'a': deadline_s"),
    ("tenant", ["lab"], "jobs: tenant"),
    ("tenant", ["lab", 7], "jobs: tenant of row 1"),
]


@pytest.mark.parametrize(("field", "values", "place"), JOBS)
def test_a_bad_fact_about_a_job(field: str, values: object, place: str, wording: Wording) -> None:
    """Facts about jobs are checked field by field, and the error names the job."""
    message = refusal(lambda: Jobs(("a", "b"), **{field: values}))
    assert message.startswith(place)
    wording(message)


@pytest.mark.parametrize(
    ("ids", "place"),
    [
        (("a", "b", "a"), "jobs: duplicate id 'a'"),
        (tuple("abcdefg") * 2, "jobs: duplicate id 'a', 'b'"),
        (("a", 5), "jobs: id of row 1"),
        ("ab", "jobs: id"),
    ],
)
def test_a_bad_id(ids: object, place: str, wording: Wording) -> None:
    """Ids must be distinct strings, because a job has no other name."""
    message = refusal(lambda: Jobs(ids))
    assert message.startswith(place)
    wording(message)


COLUMNS = [
    ({"gpus": [1, 0, 1]}, "columns, row 1: gpus"),
    ({"gpus": [1, 1, 2.5]}, "columns, row 2: gpus"),
    ({"second": [-1, -2, -1]}, "columns, row 1: second"),
    ({"first_rate": [1, 2]}, "columns: first_rate"),
    ({"label": ["", ""]}, "columns: label"),
    ({"first": 0}, "columns: first"),
]


@pytest.mark.parametrize(("change", "place"), COLUMNS)
def test_a_bad_column_by_itself(change: dict[str, object], place: str, wording: Wording) -> None:
    """A table of columns alone has no names yet: the error gives row, field and value."""
    message = refusal(lambda: replace(GOOD.columns, **change))
    assert message.startswith(place)
    wording(message)


UNFIT = [
    ({"first": [0, 2, 1]}, "column 1: first"),
    ({"first": [-1, 1, 1]}, "column 0: first"),
    ({"second": [-1, -1, 9]}, "column 2: second"),
    ({"first_rate": [4, NAN, 1]}, "'b' on 1 × v100: first_rate"),
    ({"first_rate": [-4, 3, 1]}, "'a' on 1 × v100: first_rate"),
    ({"first_rate": [4, 3, INF]}, "'b' on 1 × k80: first_rate"),
    ({"second": [1, -1, -1], "second_rate": [NAN, 0, 0]}, "'a' + 'b' on 1 × v100: second_rate"),
    ({"second": [0, -1, -1]}, "column 0: pairs"),
    ({"worker_type": [2, 0, 1]}, "column 0 ('a'): worker_type"),
    ({"worker_type": [0, 0, -1]}, "column 2 ('b'): worker_type"),
    ({"worker_type": [0, 0, 0]}, "columns 1 and 2"),
]


@pytest.mark.parametrize(("change", "place"), UNFIT)
def test_a_column_that_does_not_fit_the_jobs(change: dict[str, object], place: str, wording: Wording) -> None:
    """In a problem, which has jobs, the error describes a column by the ids of its jobs."""
    message = refusal(lambda: replace(GOOD, columns=replace(GOOD.columns, **change)))
    assert message.startswith(place)
    wording(message)


def test_a_second_rate_without_a_second_job(wording: Wording) -> None:
    """A second rate without a second job is refused, not ignored; the error names the column's job."""
    message = refusal(lambda: replace(GOOD, columns=replace(GOOD.columns, second_rate=[0.0, 2.0, 0.0])))
    assert "'b'" in message
    assert "second_rate is 2.0" in message
    wording(message)


def test_a_pair_listed_twice_either_way_round(wording: Wording) -> None:
    """(a, b) and (b, a) are the same column, so one is refused; with another label, width or type they differ."""
    pair = together(("a", "b"), "v100", (2.0, 1.0))
    others = (pair._replace(label="mps"), pair._replace(gpus=2), pair._replace(worker_type="k80"))
    solo = (alone("a", "v100", 4.0), alone("b", "v100", 3.0))
    assert len(by_hand({"v100": 2, "k80": 4}, *solo, pair, *others).columns) == 6
    turned = together(("b", "a"), "v100", (1.0, 2.0))
    message = refusal(lambda: by_hand({"v100": 2, "k80": 4}, *solo, pair, *others, turned))
    assert message.startswith("columns 2 and 6 ")
    wording(message)


CLUSTER = [
    ({"capacity": [2, NAN]}, "worker type 'k80': capacity"),
    ({"capacity": [-2, 4]}, "worker type 'v100': capacity"),
    ({"capacity": [2, INF]}, "worker type 'k80': capacity"),
    ({"capacity": [2]}, "problem: capacity"),
    ({"price_per_gpu_hour": [1, -1]}, "worker type 'k80': price_per_gpu_hour"),
    ({"price_per_gpu_hour": [INF, 1]}, "worker type 'v100': price_per_gpu_hour"),
    ({"worker_types": ("v100", "v100")}, "worker_types: "),
    ({"worker_types": ("v100", 100)}, "problem: worker_types of row 1"),
    ({"now_s": NAN}, "problem: now_s"),
]


@pytest.mark.parametrize(("change", "place"), CLUSTER)
def test_a_bad_cluster(change: dict[str, object], place: str, wording: Wording) -> None:
    """The error names the worker type at fault."""
    message = refusal(lambda: replace(GOOD, **change))
    assert message.startswith(place)
    wording(message)


TENANTS = [
    ({"name": ""}, "tenant: "),
    ({"name": "lab", "weight": 0.0}, "tenant 'lab': weight"),
    ({"name": "lab", "weight": NAN}, "tenant 'lab': weight"),
    ({"name": "lab", "weight": INF}, "tenant 'lab': weight"),
    ({"name": "lab", "policy": "lifo"}, "tenant 'lab': policy"),
]


@pytest.mark.parametrize(("facts", "place"), TENANTS)
def test_a_bad_tenant(facts: dict[str, object], place: str, wording: Wording) -> None:
    """A tenant has a name, a positive weight and one of two policies."""
    message = refusal(lambda: Tenant(**facts))
    assert message.startswith(place)
    wording(message)


def test_a_tenant_that_is_not_listed(wording: Wording) -> None:
    """With tenants listed, every job belongs to one of them; with none listed, any path is accepted."""
    jobs = replace(GOOD.jobs, tenant=("lab", "labb"))
    assert replace(GOOD, jobs=jobs).jobs.tenant == ("lab", "labb")
    message = refusal(lambda: replace(GOOD, jobs=jobs, tenants=(Tenant("lab"), Tenant("shop"))))
    assert "job 'b': tenant 'labb' " in message
    assert "'lab'" in message
    assert "'shop'" in message
    wording(message)


def test_a_tenant_listed_twice(wording: Wording) -> None:
    """Two tenants with the same path are refused."""
    message = refusal(lambda: replace(GOOD, tenants=(Tenant("lab"), Tenant("lab", weight=2.0))))
    assert message.startswith("tenants: ")
    wording(message)


RATES = [
    ([[1.0, NAN]], {}, "job 'a' on 'k80': rate"),
    ([[-1.0, 0.0]], {}, "job 'a' on 'v100': rate"),
    ([[1.0]], {}, "rates: 1"),
    ([[1.0, 1.0]] * 2, {}, "rates: 2"),
    ([1.0, 1.0], {}, "rates: expected"),
    ([[1.0, 1.0]], {"gpus": 0}, "job 'a': gpus"),
    ([[1.0, 1.0]], {"capacity": [1]}, "problem: capacity"),
    ([[1.0, 1.0]], {"weight": [1, 2]}, "jobs: weight"),
]


@pytest.mark.parametrize(("rates", "change", "place"), RATES)
def test_a_bad_table_of_rates(rates: object, change: dict[str, object], place: str, wording: Wording) -> None:
    """For a plain table of rates, too, the error names job and worker type."""
    usual = {"capacity": [1, 1], "ids": ("a",), "worker_types": ("v100", "k80")}
    message = refusal(lambda: Problem.from_rates(rates, **(usual | change)))
    assert message.startswith(place)
    wording(message)


def test_errors_are_of_one_tree() -> None:
    """A ProblemError can be caught as a PolicyError, and as a ValueError."""
    assert issubclass(ProblemError, PolicyError)
    assert issubclass(ProblemError, ValueError)


def test_unusual_problems_that_are_accepted() -> None:
    """A type without GPUs, an unknown price, a past deadline, whole floats and an empty problem are accepted."""
    assert replace(GOOD, capacity=[2, 0]).capacity.tolist() == [2.0, 0.0]
    assert np.isnan(GOOD.price_per_gpu_hour).all()
    assert Jobs(("a",), deadline_s=-60.0).deadline_s.tolist() == [-60.0]
    assert Jobs(("a", "b"), gpus=[1.0, 2.0]).gpus.tolist() == [1, 2]
    assert Jobs(tuple(np.array(["a", "b"]))).ids == ("a", "b")
    assert len(Jobs(())) == 0
    assert len(Columns([], [], [], [])) == 0
    empty = Problem(jobs=Jobs(()), columns=Columns([], [], [], []), worker_types=(), capacity=[])
    assert (empty.rates.shape, empty.membership.shape, empty.occupancy.shape) == ((0, 0), (0, 0), (0, 0))
