"""A cluster as an operator sets it up: keys, a token, a node that joins, and only encrypted connections."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.cluster import PATIENCE_S, ROOT, eventually
from tests.support.ports import free_port


class Operator:
    """A user at a terminal, who signs in after `init`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port(in_a_row=2)
        self.data = folder / "data"
        self.env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def gavel(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        result = subprocess.run(
            [sys.executable, "-m", "gavel", *arguments],
            env=self.env,
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert result.returncode == code, result.stderr
        return result

    @contextmanager
    def running(self, name: str, *arguments: str) -> Iterator[Path]:
        """Run a command in the background; yield its log."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "gavel", *arguments],
                env=self.env,
                cwd=self.folder,
                stdout=out,
                stderr=out,
            )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(PATIENCE_S)

    def sign_in(self) -> None:
        """Use the token and the authority that `init` has created."""
        self.env["GAVEL_ADDRESS"] = f"127.0.0.1:{self.port}"
        self.env["GAVEL_TOKEN"] = (self.folder / "token").read_text().strip()
        self.env["GAVEL_CA"] = str(self.data / "tls" / "ca.pem")


def test_a_node_joins_a_cluster_with_keys_and_runs_a_job(tmp_path):
    """init → serve → token join → agent join → agent → submit: with mutual TLS, and nothing unencrypted.

    The same token joins no second node, and an agent that has not joined is refused.
    """
    operator = Operator(tmp_path)
    operator.gavel(
        "init", str(operator.data), "--port", str(operator.port), "--token-file", str(tmp_path / "token")
    )
    operator.sign_in()
    with operator.running("serve", "serve", "--config", str(operator.data / "gavel.toml")) as log:
        eventually(lambda: "listening on" in log.read_text(), "the scheduler listens")
        created = operator.gavel("token", "join", "--node", "n1")
        token = created.stdout.strip()
        fingerprint = re.search(r"sha256:[0-9a-f]{64}", created.stderr)[0]
        join_options = (
            "--ca-fingerprint",
            fingerprint,
            "--token",
            token,
            "--state-dir",
            str(tmp_path / "n1"),
        )
        address = f"127.0.0.1:{operator.port}"
        joined = operator.gavel("agent", "join", "--scheduler", address, "--name", "n1", *join_options)
        start = re.search(r"start it with: gavel (.*)", joined.stdout)[1].split()
        other = ("--cert-dir", str(tmp_path / "other"))
        refused = operator.gavel(
            "agent", "join", "--scheduler", address, "--name", "n1", *join_options, *other, code=2
        )
        assert "already used" in refused.stderr
        agent = (
            "agent",
            "--scheduler",
            f"127.0.0.1:{operator.port + 1}",
            "--gpus",
            "v100=1",
            "--single-user",
        )
        with (
            operator.running("n1", *start, "--gpus", "v100=1", "--single-user") as n1,
            operator.running("n2", *agent, "--name", "n2", "--state-dir", str(tmp_path / "n2")) as n2,
        ):
            eventually(lambda: "linked to the scheduler" in n1.read_text(), "n1 is linked")
            ran = operator.gavel("submit", "--wait", "--", sys.executable, "-c", "print('encrypted')")
            assert "completed" in ran.stdout + ran.stderr
            assert operator.gavel("logs", "1").stdout == "encrypted\n"
            eventually(lambda: "no link to the scheduler" in n2.read_text(), "n2 is refused")
            assert "linked to the scheduler" not in n2.read_text()
            assert "`gavel agent join`" in n2.read_text()
