"""The distributions hold every file of the product, and the base works without the packages of the extras."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.install.building import (
    PACKAGES,
    base_environment,
    build,
    copy_tree,
    run_gavel,
    size_bytes,
    tracked_files,
    unpacked_sdist,
)

BASE_MB_MAX = 75
HEAVY = ("numpy", "scipy", "cvxpy", "clarabel", "highspy", "matplotlib", "pandas", "ray", "torch")
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a clone of this working tree."""
    return copy_tree(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this working tree."""
    return build(source, "wheel", tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its base requirements, and nothing else."""
    return base_environment(wheel, tmp_path_factory.mktemp("base") / "site")


def product_files(wheel: Path) -> list[str]:
    """Return the files of a wheel except its metadata."""
    with zipfile.ZipFile(wheel) as file:
        return sorted(name for name in file.namelist() if ".dist-info/" not in name)


def test_the_wheel_holds_every_file_of_the_product(wheel: Path) -> None:
    """The wheel has all tracked files of the packages (also `py.typed`, stubs and .proto files) and no others."""
    assert product_files(wheel) == tracked_files(*PACKAGES)
    assert {"gavel/py.typed", "protos/gavel/v1/jobs_pb2.pyi", "protos/gavel/v1/jobs.proto"} <= set(
        product_files(wheel)
    )


def test_the_source_distribution_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """A wheel that is built from the source distribution has the same files."""
    archive = build(source, "sdist", tmp_path / "sdist")
    again = build(unpacked_sdist(archive, tmp_path / "unpacked"), "wheel", tmp_path / "wheel")
    assert product_files(again) == product_files(wheel)


def test_the_base_is_small(site: Path) -> None:
    """Installed with bytecode, the base stays below its limit and has no heavy package."""
    assert not [name for name in HEAVY if (site / name).exists()]
    assert size_bytes(site) <= BASE_MB_MAX * 1_000_000


def test_client_and_agent_import_nothing_else(site: Path) -> None:
    """Every module of the client, the agent and the commands about jobs and clusters imports with the base alone."""
    packages = ("gavel.client", "gavel.cli.jobs", "gavel.cli.cluster", "worker_agent", "protos")
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(site), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--help", 0),
        ("--version", 0),
        ("agent --help", 0),
        ("config --agent --example", 0),
        ("context --json", 0),
        ("doctor", 0),
        ("queue --address 127.0.0.1:1", 4),
    ],
)
def test_the_base_is_enough_for_clients_and_agents(site: Path, command: str, code: int) -> None:
    """Help, settings and contexts work; a call to an address without a scheduler ends with exit code 4."""
    done = run_gavel(site, *command.split())
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_python_dash_m_scheduler_names_the_missing_extra_too(site: Path) -> None:
    """The error is one line without a traceback, like that of `gavel serve`."""
    run = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('scheduler', run_name='__main__')"
    command = [sys.executable, "-I", "-S", "-c", run, str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("python -m scheduler: ")
    assert done.stderr.endswith("pip install 'gavel-scheduler[server]'\n")


@pytest.mark.parametrize(
    "command",
    [
        "policies",
        "serve --data-dir data",
        "up --data-dir data",
        "fsck --data-dir data",
        "allocate problem.yaml",
        "simulate --workload mixed-day --rate 1 --jobs 5 --cluster v100=4",
        "sweep --workload mixed-day --rate 1 --jobs 5 --policy las --cluster v100=4",
        "replay run.db",
        "explain 1 --journal run.db",
        "compare a.json b.json",
    ],
)
def test_a_missing_extra_is_one_line_with_its_remedy(site: Path, command: str) -> None:
    """The line names the command that installs the extra. Exit code 2, no output and no file."""
    before = sorted(site.parent.iterdir())
    done = run_gavel(site, *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.endswith("pip install 'gavel-scheduler[server]'\n")
    assert sorted(site.parent.iterdir()) == before
