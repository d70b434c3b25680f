"""The boards for Grafana: the files are those that the program writes, and show metrics that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from docs.boards import BOARDS, FOLDER, texts
from docs.grafana import COLUMNS, Board, Panel, Variable, scoped
from scheduler.live.observe.metrics.catalogue import Metrics

FAMILIES = Metrics("0").registry.families
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("",), "gauge": ("",)}
LABELS = {name + end: family.labels for name, family in FAMILIES.items() for end in SUFFIXES[family.kind]}
boards = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def panels(board: Board) -> list[Panel]:
    """Return all panels of a board."""
    return [panel for row in board.rows for panel in row]


def test_the_files_are_those_of_the_program() -> None:
    """`python -m docs.boards` writes them."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == texts()


@boards
def test_panels_show_metrics_that_exist(board: Board) -> None:
    """Each query names at least one series, each selector a label of it; titles are different."""
    for panel in panels(board):
        assert panel.description.endswith(".")
        for query in panel.queries:
            names = re.findall(r"\bgavel_\w+", query.expr)
            assert names
            assert set(names) <= LABELS.keys()
    titles = [panel.title for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for variable in board.variables:
        assert all(variable.label in FAMILIES[name].labels for name in variable.metrics)


@pytest.mark.parametrize("text", texts().values(), ids=list(texts()))
def test_a_board_can_be_used_with_any_data_source(text: str) -> None:
    """Panels fill their rows, and ask the source and the scheduler that the user chooses."""
    board: dict[str, Any] = json.loads(text)
    source = {"type": "prometheus", "uid": "${source}"}
    assert [each["name"] for each in board["templating"]["list"]][:2] == ["source", "instance"]
    covered = set[tuple[int, int]]()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["y"] + y, at["x"] + x) for y in range(at["h"]) for x in range(at["w"])}
        assert not cells & covered
        covered |= cells
        assert panel["datasource"] == source
        for target in panel["targets"]:
            assert target["datasource"] == source
            assert 'instance="$instance"' in target["expr"]
    assert {x for _, x in covered} == set(range(COLUMNS))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_each_metric_of_a_query_is_narrowed() -> None:
    """The selector of the query stays, and a variable applies to the metrics that it names."""
    tenant = Variable("tenant", "Tenant", ("gavel_wait",))
    expr = 'sum(gavel_wait_bucket) / sum(gavel_jobs{state="running"})'
    assert scoped(expr, [tenant]) == (
        'sum(gavel_wait_bucket{instance="$instance",tenant=~"$tenant"})'
        ' / sum(gavel_jobs{instance="$instance",state="running"})'
    )
