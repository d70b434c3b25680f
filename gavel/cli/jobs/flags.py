"""Options of `gavel submit` as fields of a job file: the same code reads both and reports the same errors."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gavel.cli.faults import Fault, refusing
from gavel.client.jobs.file import Faults, field_values, plans_in
from gavel.client.jobs.spec import BY_NAME
from protos.files.errors import BadInput
from protos.files.nodes import List, Node, Scalar, Table


def flag(field: str) -> str:
    """Return the option for a field of a job file, such as `--worker-type` for `worker_types`."""
    options = click.get_current_context().command.params
    return next(option.opts[-1] for option in options if option.name == field)


def flag_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of JobSpec for the options that are set. `Fault` names the option."""
    nodes = {
        name: _node(name, value)
        for name, value in options.items()
        if name in BY_NAME and value is not None and value != ()
    }
    try:
        values = field_values(nodes, time.time())
    except Faults as error:
        fault = error.faults[0]
        field, *keys = [part for part in fault.place if isinstance(part, str)]
        raise Fault(f"{' '.join([flag(field), *keys])}: {fault.problem}") from None
    if "plans" in values:
        with refusing(BadInput, subject="--plan"):
            values["plans"] = plans_in(values["plans"], Path())
    return values


def _node(name: str, value: Any) -> Node:
    if isinstance(value, bool):
        return _scalar(str(value).lower())
    if name == "plan" and value.startswith("auto="):
        # As in a job file, but without braces: auto=model.profile.json,batch=64.
        return Table(
            {key.value: (key, node) for key, node in (_pair(name, text) for text in value.split(","))}
        )
    if BY_NAME[name].kind.startswith("mapping of "):
        # As on most command lines, the last value of a repeated key counts.
        return Table({key.value: (key, node) for key, node in (_pair(name, text) for text in value)})
    if isinstance(value, Sequence) and not isinstance(value, str):
        return List([_scalar(entry) for entry in value])
    return _scalar(value)


def _pair(name: str, text: str) -> tuple[Scalar, Node]:
    key, equals, value = text.partition("=")
    if not equals and name == "env" and key:
        if key not in os.environ:
            raise Fault(f"--env {key}: there is no such variable here; write {key}=VALUE")
        value, equals = os.environ[key], "="
    if not (key and equals):
        form = (
            "VARIABLE=SECRET, the name of a secret that the nodes keep" if name == "env_from" else "KEY=VALUE"
        )
        raise Fault(f"{flag(name)} {text}: must be {form}")
    return _scalar(key), _scalar(value, plain=name in ("rates", "plan"))


def _scalar(text: str, *, plain: bool = True) -> Scalar:
    return Scalar(text, is_quoted=not plain)
