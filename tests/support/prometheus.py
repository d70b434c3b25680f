"""A real Prometheus for tests: started with a configuration, asked over HTTP."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.ports import free_port


def fetch(port: int, path: str) -> bytes:
    """Return the answer to a GET; nothing while the program does not answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read() if response.status == HTTPStatus.OK else b""
    except (OSError, HTTPException):
        return b""
    finally:
        connection.close()


@contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    """Run a program during the block, in the directory of its log."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent) as process:
        try:
            yield
        finally:
            process.kill()


class Prometheus:
    """A server that scrapes these targets once a second, within the block."""

    def __init__(self, folder: Path, scrape: str, **settings: Any) -> None:
        """`settings`: more sections of its configuration."""
        self.folder, self.port = folder, free_port()
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        job = {"job_name": "gavel", "static_configs": [{"targets": [scrape]}]}
        config = {"global": every, "scrape_configs": [job], **settings}
        # JSON is YAML, too.
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self._running = running(
            folder / "prometheus.log",
            *("prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'prometheus'}"),
            f"--web.listen-address=127.0.0.1:{self.port}",
        )

    def __enter__(self) -> Prometheus:
        self._running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(None, None, None)

    def query(self, text: str) -> list[Any]:
        """Return the series of now; none while Prometheus does not answer."""
        return self._series("query", {"query": text})

    def query_range(self, text: str, since_s: float, until_s: float) -> list[Any]:
        """Return the series of a period, as a chart would; none while Prometheus does not answer."""
        period = {"start": f"{since_s:.3f}", "end": f"{until_s:.3f}", "step": "1"}
        return self._series("query_range", {"query": text, **period})

    def _series(self, path: str, parameters: Mapping[str, str]) -> list[Any]:
        answer = fetch(self.port, f"/api/v1/{path}?{urlencode(parameters)}")
        return list(json.loads(answer)["data"]["result"]) if answer else []
