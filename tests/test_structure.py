"""Folders: their docstrings, their size, and the direction of imports between them."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.structure import PRODUCT, beside, by_folder, circles, imports

ROOT = Path(__file__).resolve().parents[1]
FILES = imports(ROOT)
FOLDERS = by_folder(FILES)
PARENTS = sorted({folder.rpartition("/")[0] for folder in FOLDERS if "/" in folder})
FILES_MAX = 20
# This folder has one file per objective, and files that all objectives share.
ROOMY = {"policies": 24}

# For each contract, a file and an import in it that the contract must refuse.
VIOLATIONS = {
    "policies-import-nothing-of-ours": ("policies/fifo.py", "import scheduler.model.jobs"),
    "policies-are-mathematics": ("policies/fifo.py", "import rich"),
    "planner-is-mathematics": ("planner/chain.py", "import traces.trace"),
    "nothing-below-the-faces-plans": ("scheduler/model/jobs.py", "import planner.chain"),
    "traces-are-data": ("traces/trace.py", "import scheduler.model.jobs"),
    "scheduler-layers": ("scheduler/model/jobs.py", "import scheduler.rounds.plan"),
    "the-core-is-pure": ("scheduler/core/apply.py", "import sqlite3"),
    "decisions-know-no-world": ("scheduler/rounds/rank.py", "import time"),
    "explain-only-reads": ("scheduler/explain/waiting.py", "import scheduler.core.on_jobs"),
    "below-the-worlds": ("scheduler/journal/store.py", "import traces.trace"),
    "simulated-nodes-run-the-agents-core": ("scheduler/sim/engine/node.py", "import worker_agent.runs.run"),
    "live-layers": ("scheduler/live/wire/jobs.py", "import scheduler.live.api.jobs"),
    "agent-layers": ("worker_agent/core/core.py", "import worker_agent.runs.launch"),
    "a-shim-needs-python-only": ("worker_agent/shim/child.py", "import msgspec"),
    "the-network-of-an-agent-is-its-link": ("worker_agent/runs/launch.py", "import grpc"),
    "nothing-below-knows-its-face": ("scheduler/model/jobs.py", "import click"),
    "only-the-live-scheduler-speaks-the-protocol": ("scheduler/sim/sweep.py", "import grpc"),
    "the-live-scheduler-knows-no-agents": ("scheduler/live/world.py", "import worker_agent.core.core"),
    "agents-stand-alone": ("worker_agent/core/core.py", "import policies.problem"),
    "a-job-library-stands-alone": ("gavel/training/gate.py", "import numpy"),
    "the-client-stands-apart": ("gavel/client/calls.py", "import gavel.cli.main"),
    "the-gateway-is-a-client": ("gavel/web/app.py", "import scheduler.model.jobs"),
    "the-protocol-knows-no-side": ("protos/gavel/v1/plain.py", "import scheduler.model.jobs"),
    "limits-need-python-only": ("protos/gavel/v1/limits.py", "import grpc"),
    "files-are-read-alike": ("protos/files/yaml.py", "import grpc"),
    "nothing-shipped-imports-scaffolding": ("scheduler/drive.py", "import tests.structure"),
}


def test_no_imports_run_in_circles() -> None:
    """There is no circle between files, late imports included, nor between folders that lie side by side."""
    assert circles(FILES) == []
    assert [group for parent in PARENTS for group in circles(beside(FOLDERS, parent))] == []


def test_circles_are_found(tmp_path: Path) -> None:
    """Circles are found between files, through late imports and imports of names, and between folders."""
    texts = {
        "scheduler/a": "from scheduler.b import name",
        "scheduler/b": "def late():\n    import scheduler.a",
        "scheduler/c": "from scheduler import a",
        "scheduler/left/x": "from scheduler.right import y",
        "scheduler/right/y": "",
        "scheduler/right/z": "import scheduler.left.x",
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    files = imports(tmp_path)
    assert files["scheduler/c"] == {"scheduler/a"}
    assert circles(files) == [["scheduler/a", "scheduler/b"]]
    assert circles(beside(by_folder(files), "scheduler")) == [["left", "right"]]


def test_a_folder_holds_as_much_as_one_looks_through() -> None:
    """A folder of product code has at most twenty files, or needs subfolders."""
    sizes = {folder: sum(name.rpartition("/")[0] == folder for name in FILES) for folder in FOLDERS}
    assert {name: size for name, size in sizes.items() if size > ROOMY.get(name, FILES_MAX)} == {}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_folder_has_a_line_about_its_purpose(folder: str) -> None:
    """The first line of a folder's `__init__.py` describes for newcomers what belongs in the folder."""
    about = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8")))
    assert about is not None, f"{folder}/__init__.py has no docstring"
    assert about.partition("\n")[0].endswith((".", ":")), (
        f"the first line of {folder}/__init__.py is no sentence"
    )


def test_the_files_of_a_shim_import_the_standard_library_only() -> None:
    """A shim imports only the standard library and itself, so it runs in any environment with Python."""
    packages = {
        name.partition(".")[0] for path in (ROOT / "worker_agent/shim").glob("*.py") for name in _named(path)
    }
    assert packages - sys.stdlib_module_names == {"worker_agent"}
    assert {other for name in FILES if name.startswith("worker_agent/shim/") for other in FILES[name]} <= {
        name for name in FILES if name.startswith("worker_agent/shim/")
    } | {"worker_agent/__init__"}


def test_contracts_have_teeth(tmp_path: Path) -> None:
    """In a copy of the tree with a forbidden import for each contract, every contract is broken."""
    contracts = ConfigParser()
    contracts.read(ROOT / "setup.cfg")
    names = {part.rpartition(":")[2]: contracts[part]["name"] for part in contracts if ":contract:" in part}
    assert set(VIOLATIONS) == set(names)
    for top in (*PRODUCT, "tests", "benchmarks", "examples"):
        shutil.copytree(
            ROOT / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__", "*.txt", "*.json*")
        )
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    for path, line in VIOLATIONS.values():
        with (tmp_path / path).open("a") as file:
            file.write(f"\n{line}\n")
    linter = Path(sys.executable).with_name("lint-imports")
    command = [str(linter), "--no-logo", "--no-cache", "--config", "setup.cfg"]
    report = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    summary = " ".join(report.partition("Broken contracts")[0].split())
    assert [name for name in names.values() if f"{name} BROKEN" not in summary] == []


def _named(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
