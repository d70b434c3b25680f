"""Boards for Grafana: rows of panels with queries, and the JSON documents that Grafana imports.

A query names metrics without a selector; it gets that of the scheduler, and of the variables of its board:

    Query("sum by (state) (gavel_jobs)", "{{state}}")
    → sum by (state) (gavel_jobs{instance="$instance"})
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# The columns of a board, and the heights of a row of numbers and of a row of charts.
COLUMNS, NUMBER_HEIGHT, CHART_HEIGHT = 24, 4, 8
SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_METRIC = re.compile(r"\b(gavel_\w+)(?:\{([^}]*)\})?")


class Query(NamedTuple):
    """A question to Prometheus, and how its series are named."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A chart, or numbers, with what it means in a sentence."""

    title: str
    description: str
    queries: Sequence[Query]
    # As Grafana names it: "s", "bytes", "percentunit", "short".
    unit: str = "short"
    is_stacked: bool = False
    # Show the newest values as numbers.
    is_number: bool = False


class Variable(NamedTuple):
    """A label by whose values the board can be narrowed, on the metrics that have it."""

    label: str
    title: str
    # The metrics that have the label; the values are those of the first.
    metrics: Sequence[str]


class Board(NamedTuple):
    """A page of panels."""

    uid: str
    title: str
    rows: Sequence[Sequence[Panel]]
    variables: Sequence[Variable] = ()


def scoped(expr: str, variables: Sequence[Variable] = ()) -> str:
    """Return the expression with the selectors of the scheduler and of the variables at each metric."""

    def selected(match: re.Match[str]) -> str:
        name, own = match.groups()
        family = re.sub(r"_(bucket|count|sum)$", "", name)
        selectors = ['instance="$instance"', *filter(None, [own])]
        selectors += [f'{each.label}=~"${each.label}"' for each in variables if family in each.metrics]
        return f"{name}{{{','.join(selectors)}}}"

    return _METRIC.sub(selected, expr)


def document(board: Board) -> dict[str, Any]:
    """Return the board as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        height, width = NUMBER_HEIGHT if row[0].is_number else CHART_HEIGHT, COLUMNS // len(row)
        for place, panel in enumerate(row):
            at = {"x": place * width, "y": y, "w": width, "h": height}
            panels.append(_panel(len(panels) + 1, panel, at, board.variables))
        y += height
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["gavel"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables(board.variables)},
        "panels": panels,
    }


def _variables(variables: Sequence[Variable]) -> list[dict[str, Any]]:
    source = {"type": "datasource", "name": "source", "label": "Data source", "query": "prometheus"}
    instance = _variable("instance", "Scheduler", "gavel_build_info")
    every = {
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    labels = [_variable(each.label, each.title, scoped(each.metrics[0])) | every for each in variables]
    return [source, instance, *labels]


def _variable(label: str, title: str, metric: str) -> dict[str, Any]:
    text = f"label_values({metric}, {label})"
    return {
        "type": "query",
        "name": label,
        "label": title,
        "datasource": _SOURCE,
        "query": {"query": text, "refId": label},
        "definition": text,
        # Look for values again whenever the time range changes, and sort them by name.
        "refresh": 2,
        "sort": 1,
    }


def _panel(number: int, panel: Panel, at: Mapping[str, int], variables: Sequence[Variable]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.is_number:
        kind, options = "stat", {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    else:
        kind, options = "timeseries", {"legend": {"showLegend": True}, "tooltip": {"mode": "multi"}}
        defaults["custom"] = (
            {"stacking": {"mode": "normal"}, "fillOpacity": 40} if panel.is_stacked else {"fillOpacity": 0}
        )
    return {
        "id": number,
        "type": kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": scoped(query.expr, variables),
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
