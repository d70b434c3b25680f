"""The form in which PipeDream's profiler writes a model's graph: `graph.txt`.

The text has one line per operator, `NAME -- DESCRIPTION -- FIELD=NUMBER, …`, then one line per edge, indented by a tab,
`NAME -- NAME`. Times are in milliseconds, sizes in bytes. Operators that only stand for the model's inputs, and results
that nothing uses, are left out, as PipeDream's optimizer leaves them out.
"""

from __future__ import annotations

import math

from planner.errors import BadProfile
from planner.graph import Operator, States, states_of

_TIMES = ("forward_compute_time", "backward_compute_time")
_SHOWN_CHARS_MAX = 60


def read_states(text: str, file: str = "graph.txt") -> States:
    """Return the states of the graph in a text. An error names the file and, if a line is wrong, its number."""
    operators, edges = read_graph(text, file)
    try:
        return states_of(operators, edges)
    except BadProfile as fault:
        raise BadProfile(fault.message, place=fault.place or file, hint=fault.hint) from None


def read_graph(text: str, file: str = "graph.txt") -> tuple[list[Operator], list[tuple[str, str]]]:
    """Return the operators in a text, in its order, and the edges as pairs of names."""
    operators: dict[str, Operator] = {}
    descriptions: dict[str, str] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{file}:{number}"
        if line.startswith("\t"):
            edges.append(_edge(line, operators, place))
        elif line.strip():
            name, description, fields = _parts(line, place)
            if name in operators:
                raise BadProfile(f"{_show(name)} is on two lines", place=place, hint="remove one of them")
            operators[name], descriptions[name] = _operator(name, fields, place), description
    for prefix, end in (("Input", 1), ("__getitem__", 0)):
        joined = {edge[end] for edge in edges}
        left_out = {
            name for name in operators if name not in joined and descriptions[name].startswith(prefix)
        }
        operators = {name: operator for name, operator in operators.items() if name not in left_out}
        edges = [edge for edge in edges if left_out.isdisjoint(edge)]
    if not operators:
        raise BadProfile("has no operators", place=file, hint="give a graph.txt of PipeDream's profiler")
    return list(operators.values()), edges


def _parts(line: str, place: str) -> tuple[str, str, dict[str, str]]:
    parts = line.strip().split(" -- ")
    if len(parts) < 3:
        raise BadProfile(
            f"{_show(line.strip())} is no operator",
            place=place,
            hint="write NAME -- DESCRIPTION -- FIELD=NUMBER, …",
        )
    return parts[0], parts[1], dict(part.split("=", 1) for part in parts[2].split(", ") if "=" in part)


def _operator(name: str, fields: dict[str, str], place: str) -> Operator:
    forward_ms, backward_ms = (_number(fields, field, place) for field in _TIMES)
    return Operator(
        name,
        (forward_ms + backward_ms) / 1e3,
        _number(fields, "activation_size", place),
        _number(fields, "parameter_size", place),
    )


def _number(fields: dict[str, str], field: str, place: str) -> float:
    text = fields.get(field, "")
    try:
        # The size of several outputs is a list of numbers.
        value = sum(float(part) for part in text.strip("[]").split("; "))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        fault = f"must be a number of at least 0, got {_show(text)}" if text else "is missing"
        raise BadProfile(fault, place=f"{place}: {field}")
    return value


def _edge(line: str, operators: dict[str, Operator], place: str) -> tuple[str, str]:
    first, _, second = line.strip().partition(" -- ")
    for name in (first, second):
        if name not in operators:
            raise BadProfile(
                f"an edge names the unknown operator {_show(name)}",
                place=place,
                hint="write NAME -- NAME, after the lines of both",
            )
    return first, second


def _show(text: str) -> str:
    """Return a text of the file, shortened, and without control characters."""
    literal = ascii(text)
    return literal if len(literal) <= _SHOWN_CHARS_MAX else f"{literal[:_SHOWN_CHARS_MAX]}…"
