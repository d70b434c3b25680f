"""`gavel probe`: how much of the time a script waits for its data, and what would make it faster."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import INTERRUPTED, Fault
from gavel.cli.io.lines import print_lines, words
from gavel.cli.io.options import Number
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, Session, errors_as_faults, print_line
from gavel.cli.io.wording import file_name
from scheduler.model.bounds import Bound

if TYPE_CHECKING:
    from gavel.client import Client, JobSpec

STEPS = Number(Bound(1, 1_000_000), whole=True)
# The lines of a probe's output among which its answer is.
LINES = 20


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option(
    "--steps", type=STEPS, default=100, show_default=True, help="Measure this many steps of each kind."
)
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    help="Drop this file, or the files below this directory, from the page cache before they are read.",
)
@click.option("--local", is_flag=True, help="Run the script on this machine, without a scheduler.")
@LIVE
def probe(file: str, steps: float, data: tuple[str, ...], local: bool, session: Session) -> None:
    """Measure how long the script of a job waits for its data, and what would make it faster.

    FILE is a job file with one job, whose script loops over a `gavel.training.LeasedIterator`. The script runs several
    times, one process after another, on one GPU under one lease, with a throw-away checkpoint directory: with its real
    data, with cached data, without data, and on half of the CPUs. It ends after the steps, and saves nothing.
    """
    from gavel.client import read_job_file

    with errors_as_faults():
        specs = read_job_file(file)
    if len(specs) != 1:
        raise Fault(f"{file_name(file)}: has {len(specs)} jobs; a probe takes a file with one")
    (spec,) = specs
    if local:
        answer = _here(spec, int(steps), data)
    else:
        with session.client(changes=True) as client:
            answer = _under_a_lease(client, spec, int(steps), data)
    if session.as_json:
        print_line(answer)
        return
    from gavel.client.views.probe_text import probe_lines

    print_lines([words(line) for line in probe_lines(answer)])


def _here(spec: JobSpec, steps: int, data: tuple[str, ...]) -> Mapping[str, Any]:
    """Probe the script on this machine, with this library in place of any that is installed."""
    from gavel.training.data.probing import CannotProbe, probe_script
    from worker_agent.node import job_library

    if spec.container is not None:
        raise Fault("container: --local runs no containers; leave --local out")
    if spec.upload or spec.setup:
        say("--local runs the script where it is: `upload` and `setup` do not apply")
    with tempfile.TemporaryDirectory(prefix="gavel-library-") as folder:
        library = job_library.install(Path(folder))
        environment = {**os.environ, **spec.env}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(library), environment.get("PYTHONPATH")))
        )
        environment["GAVEL_PROBE_DATA"] = os.pathsep.join(map(os.path.abspath, data))
        if spec.venv:
            environment["PATH"] = os.pathsep.join((f"{spec.venv}/bin", environment.get("PATH", os.defpath)))
        try:
            return probe_script(
                command_of(spec),
                steps,
                environment,
                spec.workdir or None,
                lambda mode: say(f"running: {mode}"),
            )
        except CannotProbe as fault:
            raise Fault(str(fault), fault.code) from None
        except KeyboardInterrupt:
            raise Fault("interrupted", INTERRUPTED) from None


def _under_a_lease(client: Client, spec: JobSpec, steps: int, data: tuple[str, ...]) -> Mapping[str, Any]:
    """Probe the script as a job, and return what its output says."""
    ranks = spec.gpus or spec.gpus_max or 1
    if ranks > 1:
        say(f"probes one of {ranks} GPUs, with its part of the CPUs and memory")
    (job,) = client.submit(probe_job(spec, steps, data))
    say(f"job {job} runs the probe")
    try:
        client.wait([job])
    except KeyboardInterrupt:
        with errors_as_faults(client):
            client.cancel(job)
        raise Fault(f"interrupted: job {job} is cancelled", INTERRUPTED) from None
    from gavel.training.data.probing import LINE

    for line in client.logs(job, tail=LINES):
        if line.startswith(LINE):
            with suppress(ValueError):
                answer: dict[str, Any] = json.loads(line.removeprefix(LINE))
                if "error" in answer:
                    raise Fault(answer["error"], answer["code"])
                return answer
    ended = client.get(job)
    reason = f" ({ended.why})" if ended.why else ""
    raise Fault(f"job {job} has ended without an answer{reason}; `gavel logs {job}` shows its output", 1)


def probe_job(spec: JobSpec, steps: int, data: tuple[str, ...]) -> JobSpec:
    """Return the job that probes the script of another one: one GPU, one lease, and no results that are kept."""
    from gavel.client import JobSpec

    ranks = spec.gpus or spec.gpus_max or 1
    kept = (
        *(
            "setup",
            "setup_limit_s",
            "venv",
            "container",
            "workdir",
            "upload",
            "env",
            "env_from",
            "gpu_memory_gb",
        ),
        *(
            "worker_types",
            "excluded_worker_types",
            "nodes",
            "labels",
            "weight",
            "tenant",
            "user",
            "time_limit_s",
        ),
        *("max_cost", "source"),
    )
    options = [word for path in data for word in ("--data", path)]
    return replace(
        JobSpec(**{name: getattr(spec, name) for name in kept}),
        name=f"probe-{spec.name}"[:100] if spec.name else "probe",
        command=(
            *("python3", "-m", "gavel.training.data.probing", "--steps", str(steps)),
            *options,
            "--",
            *command_of(spec),
        ),
        gpus=1,
        cpus=None if spec.cpus is None else spec.cpus / ranks,
        memory_gb=None if spec.memory_gb is None else spec.memory_gb / ranks,
        reports_steps=False,
        preemptible=False,
        packable=False,
        retries_node=0,
    )


def command_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the command line of a job."""
    return tuple(spec.command) if spec.command else ("/bin/sh", "-c", spec.script)
