"""An alert on its whole way: the scheduler is killed, Prometheus notices, Alertmanager tells a webhook."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.cluster import eventually
from tests.support.parts import needs
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus, fetch, running
from tests.support.served import Served

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "gavel.rules.yml"
pytestmark = needs("prometheus", "prometheus-alertmanager")


class Webhook:
    """An HTTP server that keeps the alerts that it receives."""

    def __init__(self) -> None:
        alerts: list[dict[str, Any]] = []

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                alerts.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.alerts = alerts
        self._server = HTTPServer(("127.0.0.1", 0), Receiver)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Webhook:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def about(self, name: str, instance: str) -> list[dict[str, Any]]:
        """Return the alerts of this name about this target."""
        labels = {"alertname": name, "instance": instance}.items()
        return [alert for alert in self.alerts if labels <= alert["labels"].items()]


def write_settings(folder: Path, webhook: int) -> None:
    """Write the rules, and the file of Alertmanager; alerts fire at once, so that the test need not wait."""
    waits = "\n".join(line for line in RULES.read_text().splitlines() if not line.strip().startswith("for:"))
    (folder / "gavel.rules.yml").write_text(waits)
    alerts = {
        "route": {"receiver": "us", "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "us", "webhook_configs": [{"url": f"http://127.0.0.1:{webhook}/"}]}],
    }
    # JSON is YAML, too.
    (folder / "alertmanager.yml").write_text(json.dumps(alerts))


def rule(prometheus: Prometheus, name: str) -> dict[str, Any]:
    """Return what Prometheus knows of an alert; without times while it does not answer."""
    answer = fetch(prometheus.port, "/api/v1/rules")
    groups = json.loads(answer)["data"]["groups"] if answer else []
    rules = [entry for group in groups for entry in group["rules"] if entry["name"] == name]
    return rules[0] if rules else {"lastEvaluation": "", "state": ""}


def test_a_killed_scheduler_is_reported_to_a_webhook(tmp_path: Path) -> None:
    """While the scheduler runs, its metrics are there and it is not reported; once it is killed, it is."""
    port = free_port()
    with Served(tmp_path / "gavel", tls=False) as scheduler, Webhook() as webhook:
        scrape = json.loads((tmp_path / "gavel" / "data" / "daemon.json").read_text())["metrics_listen"]
        write_settings(tmp_path, webhook.port)
        target = {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        with (
            running(
                tmp_path / "alertmanager.log",
                *("prometheus-alertmanager", "--config.file=alertmanager.yml"),
                *(f"--storage.path={tmp_path / 'alertmanager'}", f"--web.listen-address=127.0.0.1:{port}"),
                "--cluster.listen-address=",
            ),
            Prometheus(
                tmp_path, scrape, rule_files=["gavel.rules.yml"], alerting={"alertmanagers": [target]}
            ) as prometheus,
        ):
            eventually(lambda: fetch(port, "/-/ready"), "Alertmanager is ready")
            eventually(lambda: prometheus.query("gavel_build_info"), "the metrics are scraped")
            before = rule(prometheus, "GavelDown")["lastEvaluation"]
            eventually(
                lambda: rule(prometheus, "GavelDown")["lastEvaluation"] not in ("", before),
                "the rule is evaluated",
            )
            assert rule(prometheus, "GavelDown")["state"] == "inactive"
            assert webhook.about("GavelDown", scrape) == []
            scheduler.process.kill()
            alert = eventually(lambda: webhook.about("GavelDown", scrape), "the alert arrives")[0]
    assert alert["status"] == "firing"
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["runbook"] == "docs/operations.md#start-stop-restart"
