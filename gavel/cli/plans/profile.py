"""`gavel profile`: the profile of a model, from the script that trains it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click

from gavel.cli.faults import INTERRUPTED, Fault
from gavel.cli.io.options import Number
from gavel.cli.io.outputs import check_apart, check_file
from gavel.cli.io.wording import count_of, file_name
from gavel.cli.plans.plan_table import amount
from gavel.cli.plans.values import profile_of
from gavel.cli.simulation.values import Listed, joined_lists
from scheduler.model.bounds import Bound

SAMPLES = Number(Bound(1, 100_000), whole=True)


@click.command(name="profile", context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    default="model.profile.json",
    show_default=True,
    metavar="FILE",
    help="Write the profile to FILE. Times of other worker types that are there already are kept.",
)
@click.option(
    "--samples",
    type=Listed(SAMPLES),
    multiple=True,
    callback=joined_lists,
    metavar="N,…",
    help="Measure these numbers of samples. By default, 1, 2, 4 and 8, where they divide the batch.",
)
@click.option(
    "--type",
    "worker_type",
    metavar="NAME",
    help="The worker type of this machine's GPUs. By default, that of the job, or the name of the product.",
)
def profile(
    script: str, arguments: tuple[str, ...], output: str, samples: list[float] | None, worker_type: str | None
) -> None:
    """Measure the layers of a model, for `gavel plan`.

    SCRIPT trains a `gavel.training.parallel.Pipeline`. It runs with ARGUMENTS up to its first batch, which is profiled
    instead: each layer by itself on this machine's GPU, or on its CPU. Options of this command stand before SCRIPT.
    """
    if not Path(script).is_file():
        raise Fault(f"{file_name(script)}: is not a file; give the Python script that trains the model")
    check_file("--output", output)
    check_apart({"--output": output}, [script])
    variables = {"GAVEL_PROFILE": os.path.abspath(output)}
    if samples:
        variables["GAVEL_PROFILE_SAMPLES"] = ",".join(f"{each:g}" for each in samples)
    if worker_type:
        variables["GAVEL_WORKER_TYPE"] = worker_type
    before = _identity(output)
    code = _run([sys.executable, script, *arguments], variables)
    if code == -signal.SIGINT:
        raise Fault("interrupted; no profile was written", INTERRUPTED)
    if code:
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Fault(f"{file_name(script)} ended with {end}; no profile was written", 1)
    if _identity(output) == before:
        raise Fault(f"{file_name(script)} ended without a step of a gavel.training.parallel.Pipeline", 1)
    content = profile_of(output)
    click.echo(
        f"{file_name(output)}: {count_of(len(content.layers), 'layer')}, {amount(content.parameters)} "
        f"parameters, times on {', '.join(content.worker_types)}"
    )


def _run(command: list[str], variables: dict[str, str]) -> int:
    """Run the script at this terminal; return its exit code, negative for a signal."""
    with subprocess.Popen(command, env={**os.environ, **variables}) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal has interrupted the script as well.
                continue


def _identity(path: str) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None if there is no file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
