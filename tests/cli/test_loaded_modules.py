"""Which modules each command loads: an import of a few milliseconds is seldom noticed, and many of them are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.support.live_thread import LiveThread

SOLVERS = {"scipy", "cvxpy", "clarabel", "highspy"}
SERVER = {"numpy", "policies", "scheduler", "traces", "worker_agent", *SOLVERS}
DRAWING = {"matplotlib", "rich"}
FILES = {"csv", "gzip", "tarfile", "tempfile", "tomllib", "yaml"}
# What a command that calls the scheduler need not load. `google.rpc` and `difflib` serve messages about mistakes.
NOT_FOR_CALLS = {
    *SERVER,
    *DRAWING,
    *FILES,
    *("cryptography", "difflib", "google.rpc", "importlib.metadata", "json", "secrets"),
    *(
        "gavel.client.aio",
        "gavel.client.jobs.file",
        "gavel.client.jobs.packing",
        "protos.gavel.v1.agents_pb2",
    ),
}
PROGRAM = """
import sys
from gavel.cli.main import main
try:
    main(sys.argv[1:], prog_name="gavel")
except SystemExit as ended:
    assert not ended.code, ended.code
finally:
    loaded = sorted(sys.modules)
    import json
    print("\\n" + json.dumps(loaded))
"""


def loaded(*arguments: str) -> set[str]:
    """Run `gavel …` in a process of its own; return the names of the modules that it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        (("queue",), NOT_FOR_CALLS | {"msgspec"}),
        (("status",), NOT_FOR_CALLS | {"msgspec", "gavel.client.results.jobs"}),
        (("show", "1"), NOT_FOR_CALLS | {"msgspec", "gavel.client.results.cluster"}),
        (("nodes",), NOT_FOR_CALLS | {"msgspec"}),
        (("cancel", "1"), NOT_FOR_CALLS | {"msgspec"}),
        (("submit", "--", "true"), NOT_FOR_CALLS - {"gavel.client.jobs.file"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_call_loads_only_what_it_needs(
    command: tuple[str, ...], unneeded: set[str], live: LiveThread, gavel: Gavel
) -> None:
    """A command that asks the scheduler loads no library for files, tables or plots, and no part of the server."""
    gavel("submit", "-n", "chat", "--", "true")
    assert loaded(*command) & unneeded == set()


def test_help_loads_no_library() -> None:
    """`gavel --help` loads click and nothing that takes longer."""
    assert loaded("--help") & {*NOT_FOR_CALLS, "grpc", "google.protobuf", "msgspec"} == set()


def test_the_help_of_simulations_loads_no_simulator() -> None:
    """The options of `gavel simulate` come from a table that needs neither numbers nor solvers nor plots."""
    assert loaded("simulate", "--help") & {*SOLVERS, *DRAWING, "numpy", "grpc", "policies"} == set()


def test_a_check_of_settings_loads_no_solver(tmp_path: Path) -> None:
    """A policy is found by its name without the solvers that it would use, and settings without gRPC."""
    (tmp_path / "a.toml").write_text('[scheduler]\npolicy = "water_filling"\n')
    command = "config", "--check", str(tmp_path / "a.toml")
    assert loaded(*command) & {*SOLVERS, *DRAWING, "grpc"} == set()


def test_the_list_of_policies_loads_no_solver() -> None:
    """Policies are described, and their names complete on Tab, without the solvers."""
    assert loaded("policies") & {*SOLVERS, "grpc", "matplotlib"} == set()


def test_doctor_loads_no_solver(live: LiveThread) -> None:
    """`gavel doctor` asks whether libraries are installed without loading them."""
    assert loaded("doctor", "--address", os.environ["GAVEL_ADDRESS"]) & {*SOLVERS, *DRAWING, "numpy"} == set()


def test_a_simulation_loads_solvers_only_for_a_policy_that_solves(tmp_path: Path) -> None:
    """First come, first served needs no linear program; plots need matplotlib only if they are drawn."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,1000\nb,9,resnet50,1,1000\n")
    run = "simulate", str(trace), "--cluster", "v100=1"
    assert loaded(*run, "--policy", "fifo") & {*SOLVERS, "grpc", "matplotlib"} == set()
    assert "clarabel" in loaded(*run, "--policy", "las")
