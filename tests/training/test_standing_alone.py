"""The library in a job's own environment: nothing installed, an older Python, next to nothing on the path."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.leases import ROOT, job_path

PACKAGE = ROOT / "gavel" / "training"

IMPORTED = """
import sys
import gavel.training
from gavel.training import LeasedIterator, ResumableSampler, TorchCheckpoint, pace, time_left_s
print(*sorted({name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("gavel")))
"""


def test_importing_the_library_imports_nothing_else(tmp_path: Path) -> None:
    """The import adds only `gavel` to the standard library, and of that only the training library."""
    printed = subprocess.run(
        [sys.executable, "-S", "-c", IMPORTED],
        env={"PYTHONPATH": job_path(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert printed[0].split() == ["__main__", "gavel"] or printed[0].split() == ["gavel"]
    assert [name for name in printed[1].split() if not name.startswith("gavel.training")] == ["gavel"]


def test_a_loop_runs_where_there_is_no_torch(tmp_path: Path) -> None:
    """A loop with a checkpoint of the script's own needs nothing but the standard library."""
    script = tmp_path / "job.py"
    script.write_text(
        "from gavel.training import LeasedIterator\n"
        "class Nothing:\n"
        "    def load(self): return 0\n"
        "    def save(self, step): print('saved', step)\n"
        "for batch in LeasedIterator([1, 2, 3], checkpoint=Nothing(), steps=7): print(batch, end=' ')\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", str(script)],
        env={"PYTHONPATH": job_path(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 2 3 1 2 3 1 saved 7\n"
    assert done.stderr == ""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_the_librarys_syntax_is_that_of_python_3_9(path: Path) -> None:
    """A job's environment may be older than ours; annotations may be newer, as they are never evaluated."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 9))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert futures or not any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


NEWER = {"pairwise", "StrEnum", "ExceptionGroup", "TaskGroup", "UTC", "override", "Self", "batched"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_the_library_uses_nothing_newer_than_python_3_9(path: Path) -> None:
    """The library uses no names and no arguments that the standard library of Python 3.9 lacks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert names & NEWER == set()
    words = {
        word.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"zip", "dataclass", "field"}
        for word in node.keywords
    }
    assert words & {"strict", "slots", "kw_only"} == set()
    outside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    ]
    assert [ast.unparse(node) for node in outside if isinstance(node.args[1], ast.BinOp)] == []
