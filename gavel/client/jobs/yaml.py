"""The error about a value of a job, with its place, and the nodes of a job file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from protos.files.errors import BadInput, words
from protos.files.yaml import Node, Scalar, Table, quote, read_yaml

Pair = tuple[Scalar, Node]
V = TypeVar("V")
R = TypeVar("R")


class Wrong(Exception):
    """A value is wrong: the problem, its line in a file, and `at`, which leads from the field to the value."""

    def __init__(self, node: Node | None, problem: str, at: str = "") -> None:
        super().__init__(problem)
        self.line = node.line if node is not None else None
        self.problem = problem
        self.at = at
        # Other faults that were found with it.
        self.more: Sequence[Wrong] = ()


def raise_first(faults: Sequence[Wrong]) -> None:
    """Raise the first of these, if there is one, with the others."""
    if faults:
        faults[0].more = faults[1:]
        raise faults[0]


def nested(at: str, read: Callable[[V], R], value: V) -> R:
    """Read a part of a value. Wrong names the place of the part."""
    try:
        return read(value)
    except Wrong as wrong:
        dot = "." if wrong.at and not wrong.at.startswith("[") else ""
        wrong.at = f"{at}{dot}{wrong.at}"
        raise


def documents(text: str) -> list[Node]:
    """Return each document that is not empty. Wrong where it is not YAML as Gavel reads it."""
    try:
        return read_yaml(text)
    except BadInput as error:
        wrong = Wrong(None, error.problem, words(error.place))
        wrong.line = error.line
        raise wrong from None


def pairs(node: Node, wanted: str) -> dict[str, Pair]:
    """Return each key with its node and its value's."""
    if not isinstance(node, Table):
        raise Wrong(node, f"must be {wanted}, got {quote(node)}")
    return node.value
