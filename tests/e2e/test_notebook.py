"""The example notebook, in a real kernel, against a real scheduler."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import PATIENCE_S, processes_of
from tests.support.up import Up
from worker_agent.shim import process_tree

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The cells of the notebook by their source, executed in order."""
    folder = tmp_path_factory.mktemp("notebook") / "up"
    # In long rounds, no turn ends because the machine is too busy to renew a lease in time.
    up = Up(folder, "--listen", "127.0.0.1:0", "--round-s", "600")
    try:
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        environ = {**os.environ, "GAVEL_ADDRESS": up.address(), "IPYTHONDIR": str(folder / "ipython")}
        nbclient.NotebookClient(notebook, timeout=PATIENCE_S).execute(env=environ)
        yield {cell.source: cell for cell in notebook.cells if cell.cell_type == "code"}
    finally:
        process_tree.kill_all(lambda: processes_of(folder))
        up.process.wait(PATIENCE_S)


def output(executed: dict[str, Any], call: str) -> Any:
    """Return the only output of the cell that makes this call."""
    (cell,) = [cell for source, cell in executed.items() if call in source]
    (only,) = cell.outputs
    return only


def words(html: str) -> str:
    """Return the text of an HTML document, with single spaces."""
    texts: list[str] = []
    parser = HTMLParser()
    parser.handle_data = texts.append  # type: ignore[method-assign]
    parser.feed(html)
    return " ".join(" ".join(texts).split())


def test_results_are_tables(executed: dict[str, Any]) -> None:
    """A queue, an explanation, a job and an allocation appear as HTML, with plain text beside it."""
    for call, expected in (
        ("client.queue()", "first-steps"),
        ('client.explain("after-it")', "job 2"),
        ('client.get("first-steps")', "completed"),
        ("client.allocation()", "max_min_fairness"),
        ("JobFilter(ended=True)", "after-it"),
    ):
        data = output(executed, call).data
        assert expected in words(data["text/html"]), call
        assert data["text/plain"], call


def test_the_live_view_updates_its_cell(executed: dict[str, Any]) -> None:
    """The cell has one output, which ends with the last state of both jobs."""
    view = output(executed, "client.live(")
    assert view.output_type == "display_data"
    assert re.match("2 jobs: 2 completed", words(view.data["text/html"]))


def test_logs_are_lines(executed: dict[str, Any]) -> None:
    """The printed lines are those of the job."""
    assert output(executed, "client.logs(").text == "".join(f"step {number}\n" for number in range(5))


def test_the_repository_has_no_outputs() -> None:
    """Outputs differ from run to run, so the file has none."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert {(cell["execution_count"], len(cell["outputs"])) for cell in cells} == {(None, 0)}
