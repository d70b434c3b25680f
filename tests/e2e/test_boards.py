"""The boards of deploy/grafana over a scheduler that works: a real Prometheus has series for every query."""

from __future__ import annotations

import re
import time
from pathlib import Path

from docs.boards import BOARDS
from docs.grafana import scoped
from tests.e2e.cluster import Cluster, eventually
from tests.support.parts import needs
from tests.support.prometheus import Prometheus

pytestmark = needs("prometheus")
TENANTS = ("vision", "speech")


def as_sent(expr: str, instance: str) -> str:
    """Return a query as Grafana would send it, with all tenants and types chosen."""
    text = expr.replace("$instance", instance).replace("$__rate_interval", "10s")
    return re.sub(r"\$(tenant|worker_type)\b", ".*", text)


def test_every_panel_shows_a_load_of_ten_jobs(tmp_path: Path) -> None:
    """Each query is understood and has a series with the labels in its legend, while two tenants share two GPUs."""
    waiting = {
        (as_sent(scoped(query.expr, board.variables), "INSTANCE"), query.legend)
        for board in BOARDS
        for row in board.rows
        for panel in row
        for query in panel.queries
    }
    nodes, settings = {"n1": "v100=1", "n2": "k80=1"}, ("scheduler.round_s=2",)
    with Cluster(tmp_path / "gavel", nodes, settings) as cluster:
        instance, since_s = cluster.metrics_address, time.time()
        with Prometheus(tmp_path, instance) as prometheus:
            eventually(lambda: prometheus.query("gavel_build_info"), "the metrics are scraped")
            limits = ("--gpus", "*=2", "--gpu-hours", "day=100", "--cost", "month=50")
            cluster.answer("tenant", "set", TENANTS[0], *limits)
            go = tmp_path / "go"
            for number in range(10):
                cluster.submit("counting.py", go, steps=1000, tenant=TENANTS[number % 2])
            eventually(lambda: prometheus.query('gavel_jobs{state="running"} == 2'), "two jobs run")
            go.touch()

            def unanswered() -> set[tuple[str, str]]:
                """Drop the queries that have been answered, and return the others."""
                for query, legend in sorted(waiting):
                    series = prometheus.query_range(query.replace("INSTANCE", instance), since_s, time.time())
                    labels = set(re.findall(r"{{(\w+)}}", legend))
                    if any(labels <= each["metric"].keys() for each in series):
                        waiting.discard((query, legend))
                return waiting

            try:
                eventually(lambda: not unanswered(), "every panel has a series")
            except AssertionError:
                assert waiting == set()
