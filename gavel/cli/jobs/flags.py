"""Flags of `gavel submit` as fields of a job file: the same kinds read both, and say the same about what is wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gavel.cli.faults import Fault
from gavel.cli.io.wording import printable
from gavel.client.jobs.fields import BY_NAME
from gavel.client.jobs.file import field_values
from gavel.client.jobs.yaml import Wrong

PAIRS = ("labels", "env", "env_from", "rates")
FLAGS = {
    "worker_types": "--worker-type",
    "exclude_worker_types": "--exclude-worker-type",
    "nodes": "--node",
    "labels": "--label",
    "rates": "--rate",
}


def flag(field: str) -> str:
    """`--worker-type`, as it was given."""
    return FLAGS.get(field, f"--{field.replace('_', '-')}")


def flag_values(given: Mapping[str, Any], now_s: float | None = None) -> dict[str, Any]:
    """Fields of JobSpec, from those flags that were given. `Fault` names the flag."""
    nodes = {
        name: _node(name, value)
        for name, value in given.items()
        if name in BY_NAME and value is not None and value != ()
    }
    try:
        return field_values(nodes, time.time() if now_s is None else now_s)
    except Wrong as wrong:
        field, dot, rest = wrong.at.partition(".")
        where = flag(field.partition("[")[0]) + (f" {rest}" if dot else "")
        raise Fault(printable(f"{where}: {wrong.problem}")) from None


def _node(name: str, value: Any) -> yaml.Node:
    if isinstance(value, bool):
        return _scalar(str(value).lower())
    if name in PAIRS:
        return yaml.MappingNode("", [_pair(name, one) for one in _apart(name, value)])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return yaml.SequenceNode("", [_scalar(one) for one in value])
    return _scalar(value)


def _apart(name: str, pairs: Sequence[str]) -> Sequence[str]:
    """As on most command lines, of a key that stands twice the last one holds."""
    return tuple({one.partition("=")[0]: one for one in pairs}.values())


def _pair(name: str, text: str) -> tuple[yaml.Node, yaml.Node]:
    key, equals, value = text.partition("=")
    if not equals and name == "env" and key:
        if key not in os.environ:
            raise Fault(printable(f"--env {key}: there is no such variable here; say {key}=VALUE"))
        value, equals = os.environ[key], "="
    if not (key and equals):
        form = (
            "VARIABLE=SECRET, the name of a secret that the nodes keep" if name == "env_from" else "KEY=VALUE"
        )
        raise Fault(printable(f"{flag(name)} {text}: must be {form}"))
    return _scalar(key), _scalar(value, plain=name == "rates")


def _scalar(text: str, *, plain: bool = True) -> yaml.Node:
    return yaml.ScalarNode("", text, style=None if plain else '"')
