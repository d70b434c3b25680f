"""docs/frames.md: its commands and its Python run in order, and its tables name every column."""

import doctest
import os
import re
import shlex
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

from gavel import frames
from tests.cli.conftest import run
from tests.docs.test_policies_doc import Closely

PAGE = (Path(__file__).parents[2] / "docs" / "frames.md").read_text(encoding="utf-8")
PARTS = re.findall(r"^    gavel ([^\n]*)$|```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_worked_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example loads a sweep, compares policies and plots; pandas prints what the page shows."""
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    # Run blocks one after another in one namespace, as in one session of Python.
    names: dict[str, object] = {}
    differences: list[str] = []
    for command, block in PARTS:
        if command:
            result = run(*shlex.split(command))
            assert result.exit_code == 0, f"{command}: {result.stderr}"
        else:
            example = doctest.DocTestParser().get_doctest(block, names, "docs/frames.md", None, 0)
            runner = doctest.DocTestRunner(checker=Closely(), optionflags=doctest.NORMALIZE_WHITESPACE)
            runner.run(example, out=differences.append, clear_globs=False)
            names.update(example.globs)
    assert "".join(differences) == ""
    assert {"sweep", "policies.png", "las.csv", "las.db"} <= set(os.listdir(tmp_path))


def test_every_column_is_described() -> None:
    """The tables of leases and facts name the columns of the frames in order."""
    for heading, columns in (("Leases", frames.LEASE_COLUMNS), ("Facts", frames.FACT_COLUMNS)):
        table = PAGE.partition(f"### {heading}\n")[2].partition("###")[0]
        rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(columns)


def test_every_frame_is_described() -> None:
    """Each function of `gavel.frames` that returns a frame has a row."""
    public = [name for name, value in vars(frames).items() if _returns_a_frame(name, value)]
    assert re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE) == public


def _returns_a_frame(name: str, value: object) -> bool:
    annotations = getattr(value, "__annotations__", {})
    return not name.startswith("_") and annotations.get("return") in ("pd.DataFrame", pd.DataFrame)
