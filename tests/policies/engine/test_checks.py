"""What a problem refuses: every error says where the fault is, in which field, and gives the value."""

from dataclasses import replace

import numpy as np
import pytest

from policies.errors import PolicyError, ProblemError
from policies.problem import Columns, Jobs, Problem, Tenant
from tests.support.problems import alone, by_hand, together

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
    ("weight", [1, NAN], "job 'b': weight is nan, must be a finite number above 0"),
    ("weight", [-1, 1], "job 'a': weight is -1.0, must be a finite number above 0"),
    ("weight", [1, 0], "job 'b': weight is 0.0, must be a finite number above 0"),
    ("weight", [1, INF], "job 'b': weight is inf, must be a finite number above 0"),
    ("weight", [1, 1, 1], "jobs: weight has 3 entries for 2 rows"),
    ("weight", [[1, 1]], "jobs: weight must be one-dimensional, got shape (1, 2)"),
    ("weight", "heavy", "jobs: weight must be numbers (could not convert string to float: 'heavy')"),
    ("gpus", [1, 0], "job 'b': gpus is 0, must be at least 1"),
    ("gpus", [-2, 1], "job 'a': gpus is -2, must be at least 1"),
    ("gpus", [1, 1.5], "job 'b': gpus is 1.5, must be a whole number"),
    ("gpus", [NAN, 1], "job 'a': gpus is nan, must be a whole number"),
    ("gpus", [INF, 1], "job 'a': gpus is inf, must be a whole number"),
    ("gpus", [1], "jobs: gpus has 1 entries for 2 rows"),
    ("count", [3, 0], "job 'b': count is 0, must be at least 1"),
    ("waited_s", [0, -5], "job 'b': waited_s is -5.0, must be a finite number of at least 0"),
    ("waited_s", [INF, 0], "job 'a': waited_s is inf, must be a finite number of at least 0"),
    ("steps_left", [0, 9], "job 'a': steps_left is 0.0, must be a number above 0"),
    ("steps_left", [9, NAN], "job 'b': steps_left is nan, must be a number above 0"),
    ("isolated_s", [0, -1], "job 'b': isolated_s is -1.0, must be a finite number of at least 0"),
    ("deadline_s", [NAN, 9], "job 'a': deadline_s is nan, must be a number"),
    ("tenant", ["lab"], "jobs: tenant has 1 entries for 2 rows"),
    ("tenant", ["lab", 7], "jobs: tenant of row 1 is 7, must be a string"),
]


@pytest.mark.parametrize(("field", "values", "words"), JOBS)
def test_a_bad_fact_about_a_job(field: str, values: object, words: str) -> None:
    """Facts about jobs are checked field by field, and the error names the job."""
    assert refusal(lambda: Jobs(("a", "b"), **{field: values})) == words


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (("a", "b", "a"), "jobs: duplicate id 'a'"),
        (tuple("abcdefg") * 2, "jobs: duplicate id 'a', 'b', 'c', 'd', 'e' and 2 more"),
        (("a", 5), "jobs: id of row 1 is 5, must be a string"),
        ("ab", "jobs: id must be a list of names, not the one string 'ab'"),
    ],
)
def test_a_bad_id(ids: object, words: str) -> None:
    """Ids are distinct strings, since a job has no other name."""
    assert refusal(lambda: Jobs(ids)) == words


COLUMNS = [
    ({"gpus": [1, 0, 1]}, "columns, row 1: gpus is 0, must be at least 1"),
    ({"gpus": [1, 1, 2.5]}, "columns, row 2: gpus is 2.5, must be a whole number"),
    ({"second": [-1, -2, -1]}, "columns, row 1: second is -2, must be at least -1"),
    ({"first_rate": [1, 2]}, "columns: first_rate has 2 entries for 3 rows"),
    ({"label": ["", ""]}, "columns: label has 2 entries for 3 rows"),
    ({"first": 0}, "columns: first must be one-dimensional, got shape ()"),
]


@pytest.mark.parametrize(("change", "words"), COLUMNS)
def test_a_bad_column_by_itself(change: dict[str, object], words: str) -> None:
    """A table of columns alone has no names yet: the error gives row, field and value."""
    assert refusal(lambda: replace(GOOD.columns, **change)) == words


UNFIT = [
    ({"first": [0, 2, 1]}, "column 1: first is 2, but there are 2 job rows (0 to 1)"),
    ({"first": [-1, 1, 1]}, "column 0: first is -1, but there are 2 job rows (0 to 1)"),
    ({"second": [-1, -1, 9]}, "column 2: second is 9, but there are 2 job rows (0 to 1)"),
    (
        {"first_rate": [4, NAN, 1]},
        "'b' on 1 × v100: first_rate is nan, must be a finite number of at least 0",
    ),
    (
        {"first_rate": [-4, 3, 1]},
        "'a' on 1 × v100: first_rate is -4.0, must be a finite number of at least 0",
    ),
    ({"first_rate": [4, 3, INF]}, "'b' on 1 × k80: first_rate is inf, must be a finite number of at least 0"),
    (
        {"second": [1, -1, -1], "second_rate": [NAN, 0, 0]},
        "'a' + 'b' on 1 × v100: second_rate is nan, must be a finite number of at least 0",
    ),
    (
        {"second": [0, -1, -1]},
        "column 0: pairs job 'a' with itself, which only a row that stands for two or more jobs can do",
    ),
    ({"worker_type": [2, 0, 1]}, "column 0 ('a'): worker_type is 2, but there are 2 worker types (0 to 1)"),
    ({"worker_type": [0, 0, -1]}, "column 2 ('b'): worker_type is -1, but there are 2 worker types (0 to 1)"),
    (
        {"worker_type": [0, 0, 0]},
        "columns 1 and 2 are the same: 'b' on 1 × v100",
    ),
]


@pytest.mark.parametrize(("change", "words"), UNFIT)
def test_a_column_that_does_not_fit_the_jobs(change: dict[str, object], words: str) -> None:
    """Together with its jobs, a column is described by their names."""
    assert refusal(lambda: replace(GOOD, columns=replace(GOOD.columns, **change))) == words


def test_a_second_rate_without_a_second_job() -> None:
    """A second rate without a second job is refused, not ignored; the error names the column's job."""
    words = refusal(lambda: replace(GOOD, columns=replace(GOOD.columns, second_rate=[0.0, 2.0, 0.0])))
    assert "'b'" in words
    assert "second_rate is 2.0, but second is -1" in words


def test_a_pair_listed_twice_either_way_round() -> None:
    """The pair (a, b) is the pair (b, a); other labels, widths and types are other columns."""
    pair = together(("a", "b"), "v100", (2.0, 1.0))
    others = (pair._replace(label="mps"), pair._replace(gpus=2), pair._replace(worker_type="k80"))
    solo = (alone("a", "v100", 4.0), alone("b", "v100", 3.0))
    assert len(by_hand({"v100": 2, "k80": 4}, *solo, pair, *others).columns) == 6
    turned = together(("b", "a"), "v100", (1.0, 2.0))
    words = refusal(lambda: by_hand({"v100": 2, "k80": 4}, *solo, pair, *others, turned))
    assert words == "columns 2 and 6 are the same: 'b' + 'a' on 1 × v100"


CLUSTER = [
    ({"capacity": [2, NAN]}, "worker type 'k80': capacity is nan, must be a finite number of at least 0"),
    ({"capacity": [-2, 4]}, "worker type 'v100': capacity is -2.0, must be a finite number of at least 0"),
    ({"capacity": [2, INF]}, "worker type 'k80': capacity is inf, must be a finite number of at least 0"),
    ({"capacity": [2]}, "problem: capacity has 1 entries for 2 rows"),
    (
        {"price_per_gpu_hour": [1, -1]},
        "worker type 'k80': price_per_gpu_hour is -1.0, must be a finite number of at least 0",
    ),
    (
        {"price_per_gpu_hour": [INF, 1]},
        "worker type 'v100': price_per_gpu_hour is inf, must be a finite number of at least 0",
    ),
    ({"worker_types": ("v100", "v100")}, "worker_types: a name appears twice in ['v100', 'v100']"),
    ({"worker_types": ("v100", 100)}, "problem: worker_types of row 1 is 100, must be a string"),
    ({"now_s": NAN}, "problem: now_s is nan, must be a finite number"),
]


@pytest.mark.parametrize(("change", "words"), CLUSTER)
def test_a_bad_cluster(change: dict[str, object], words: str) -> None:
    """The error names the worker type at fault."""
    assert refusal(lambda: replace(GOOD, **change)) == words


TENANTS = [
    ({"name": ""}, "tenant: the name is empty"),
    ({"name": "lab", "weight": 0.0}, "tenant 'lab': weight is 0.0, must be a positive number"),
    ({"name": "lab", "weight": NAN}, "tenant 'lab': weight is nan, must be a positive number"),
    ({"name": "lab", "weight": INF}, "tenant 'lab': weight is inf, must be a positive number"),
    ({"name": "lab", "policy": "lifo"}, "tenant 'lab': policy is 'lifo', must be 'fairness' or 'fifo'"),
]


@pytest.mark.parametrize(("facts", "words"), TENANTS)
def test_a_bad_tenant(facts: dict[str, object], words: str) -> None:
    """A tenant has a name, a positive weight and one of two policies."""
    assert refusal(lambda: Tenant(**facts)) == words


def test_a_tenant_that_is_not_listed() -> None:
    """With tenants listed, every job belongs to one of them; with none listed, any path is accepted."""
    jobs = replace(GOOD.jobs, tenant=("lab", "labb"))
    assert replace(GOOD, jobs=jobs).jobs.tenant == ("lab", "labb")
    words = refusal(lambda: replace(GOOD, jobs=jobs, tenants=(Tenant("lab"), Tenant("shop"))))
    assert "job 'b': tenant 'labb' is not among the tenants" in words
    assert "'lab'" in words
    assert "'shop'" in words


def test_a_tenant_listed_twice() -> None:
    """Two tenants of one path are refused."""
    words = refusal(lambda: replace(GOOD, tenants=(Tenant("lab"), Tenant("lab", weight=2.0))))
    assert words == "tenants: duplicate name in ['lab', 'lab']"


RATES = [
    ([[1.0, NAN]], {}, "job 'a' on 'k80': rate is nan, must be a finite number of at least 0"),
    ([[-1.0, 0.0]], {}, "job 'a' on 'v100': rate is -1.0, must be a finite number of at least 0"),
    ([[1.0]], {}, "rates: 1 columns, but 2 worker types"),
    ([[1.0, 1.0]] * 2, {}, "rates: 2 rows, but 1 ids"),
    ([1.0, 1.0], {}, "rates: expected a table of jobs × worker types, got 1 dimension(s)"),
    ([[1.0, 1.0]], {"gpus": 0}, "job 'a': gpus is 0, must be at least 1"),
    ([[1.0, 1.0]], {"capacity": [1]}, "problem: capacity has 1 entries for 2 rows"),
    ([[1.0, 1.0]], {"weight": [1, 2]}, "jobs: weight has 2 entries for 1 rows"),
]


@pytest.mark.parametrize(("rates", "change", "words"), RATES)
def test_a_bad_table_of_rates(rates: object, change: dict[str, object], words: str) -> None:
    """For a plain table of rates, too, the error names job and worker type."""
    usual = {"capacity": [1, 1], "ids": ("a",), "worker_types": ("v100", "k80")}
    assert refusal(lambda: Problem.from_rates(rates, **(usual | change))) == words


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
