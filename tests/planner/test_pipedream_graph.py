"""Graphs of PipeDream's profiler: how they are read, and which are refused."""

import pytest

from planner.errors import BadProfile
from planner.graph import Operator
from planner.pipedream_graph import read_graph, read_states


def line(name, description="ReLU", forward="1", backward="2", activation="3", parameters="4"):
    """The line of an operator."""
    fields = f"forward_compute_time={forward}, backward_compute_time={backward}"
    return f"{name} -- {description} -- {fields}, activation_size={activation}, parameter_size={parameters}"


def test_operators_and_edges_are_read():
    """In the order of the text. The sizes of several outputs are summed; numbers of stages are ignored."""
    text = "\n".join(
        [line("a"), line("b", "LSTM(1, 2)", "0.5", "0", "[3.0; 4.0]", "0") + " -- stage_id=3", "\ta -- b", ""]
    )
    assert read_graph(text) == ([Operator("a", 3e-3, 3, 4), Operator("b", 0.5e-3, 7, 0)], [("a", "b")])
    assert read_states(text).members == ({"a"}, {"a", "b"})


def test_inputs_and_unused_results_are_left_out():
    """`Input…` without inputs, and `__getitem__…` without users; if they have some, both stay."""
    text = "\n".join(
        [
            line("x", "Input0"),
            line("y", "Input1"),
            line("a"),
            line("used", "__getitem__(0)"),
            line("unused", "__getitem__(1)"),
            line("b"),
            *("\tx -- a", "\ta -- y", "\ta -- used", "\ta -- unused", "\tused -- b"),
        ]
    )
    operators, edges = read_graph(text)
    assert [each.name for each in operators] == ["y", "a", "used", "b"]
    assert edges == [("a", "y"), ("a", "used"), ("used", "b")]


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["a -- ReLU"], 1),
        (["\x1b[2J" * 40], 1),
        ([line("a"), line("a")], 2),
        ([line("a", forward="fast")], 1),
        ([line("a", backward="nan")], 1),
        ([line("a", activation="-1")], 1),
        ([line("a", parameters="inf")], 1),
        ([line("a").replace("activation_size", "size")], 1),
        ([line("a"), "\ta -- b"], 2),
        ([line("a"), "\ta"], 2),
    ],
)
def test_wrong_lines_are_refused_with_their_number(lines, number, wording):
    """The error has file, line, field and fault."""
    with pytest.raises(BadProfile) as refused:
        read_graph("\n".join(lines), "my.txt")
    assert str(refused.value).startswith(f"my.txt:{number}: ")
    wording(refused.value)


@pytest.mark.parametrize(
    "text", ["", line("x", "Input0"), "\n".join([line("a"), line("b"), "\ta -- b", "\tb -- a"])]
)
def test_wrong_graphs_are_refused_with_their_file(text, wording):
    """Nothing in it, only an input, a cycle."""
    with pytest.raises(BadProfile) as refused:
        read_states(text, "my.txt")
    assert str(refused.value).startswith("my.txt: ")
    wording(refused.value)
