"""The states in which a graph of operators can be cut."""

import re

import pytest

from planner.errors import BadProfile
from planner.graph import Operator, states_of
from planner.pipedream_graph import read_states
from tests.planner.published import planner_answers


def operators(names):
    """Operators whose time, output and parameters differ: 1, 10 and 100 for the first, 2, 20 and 200 for the next."""
    return [Operator(name, i, 10.0 * i, 100.0 * i) for i, name in enumerate(names, start=1)]


def test_a_chain_has_a_state_for_each_operator():
    """The figures of a state are those of its operators together; its output is that of the last."""
    states = states_of(operators("abc"), [("a", "b"), ("b", "c")])
    assert states.members == ({"a"}, {"a", "b"}, {"a", "b", "c"})
    assert states.compute_s.tolist() == [1, 3, 6]
    assert states.activation_bytes.tolist() == [10, 30, 60]
    assert states.parameter_bytes.tolist() == [100, 300, 600]
    assert states.output_bytes.tolist() == [10, 20, 30]
    assert states.before.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def test_branches_can_be_cut_in_any_combination():
    """With two branches, either one may be complete first. The fork's output is kept until both branches have it."""
    states = states_of(operators("abcd"), [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    assert states.members == ({"a"}, {"a", "b"}, {"a", "c"}, {"a", "b", "c"}, {"a", "b", "c", "d"})
    fork_only, left, right = 0, 1, 2
    assert states.before[[left, right], [right, left]].tolist() == [False, False]
    assert states.before[fork_only, [left, right]].tolist() == [True, True]
    assert states.output_bytes.tolist()[:3] == [10, 10 + 20, 10 + 30]


def test_an_operator_is_added_with_all_that_it_needs():
    """A second input of the model is no branch: it comes with the first operator that needs it."""
    states = states_of(operators("abx"), [("a", "b"), ("x", "b")])
    assert states.members == ({"a"}, {"a", "b", "x"})


@pytest.mark.parametrize("model", ["alexnet", "gnmt", "resnet18", "vgg16"])
def test_states_are_those_of_pipedream(model):
    """For PipeDream's profiles, the states have the figures of its own optimizer, in any order."""
    table = planner_answers()["pipedream"][model]
    states = read_states(table["graph_txt"])
    rows = zip(
        states.compute_s * 1e3,
        states.activation_bytes,
        states.parameter_bytes,
        states.output_bytes,
        states.before.sum(axis=0),
        strict=True,
    )
    expected = [(*row[:4], len(row[4])) for row in table["state_table"]["rows"]]
    for row, expected_row in zip(sorted(rows), sorted(expected), strict=True):
        assert row == pytest.approx(expected_row, rel=1e-9)


@pytest.mark.parametrize(
    ("names", "edges"),
    [
        ("", []),
        ("aa", []),
        ("ab", [("a", "c")]),
        ("dabc", [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]),
    ],
)
def test_a_graph_that_is_none_is_refused(names, edges, wording):
    """No operators, a name twice, an edge to nothing, a cycle."""
    with pytest.raises(BadProfile) as refused:
        states_of(operators(names), edges)
    wording(refused.value)


@pytest.mark.parametrize("field", ["time_s", "output_bytes", "parameter_bytes"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_impossible_figures_are_refused(field, value):
    """NaN, infinity and negative numbers are no times and no sizes; the error names operator and field."""
    figures = {"time_s": 1.0, "output_bytes": 1.0, "parameter_bytes": 1.0} | {field: value}
    with pytest.raises(
        BadProfile, match=re.escape(f"conv.{field}: must be a number of at least 0, got {value}")
    ):
        Operator("conv", **figures)


def test_too_many_branches_are_refused_with_the_two_to_join():
    """Thirteen parallel branches have more than 2¹³ states."""
    branches = "bcdefghijklmn"
    with pytest.raises(BadProfile, match=r"cannot be cut in a chain between '\w' and '\w'; join them"):
        states_of(operators("a" + branches), [("a", branch) for branch in branches])
