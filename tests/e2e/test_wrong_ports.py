"""Users and agents with a wrong setup: each gets one line with the mistake and the setting to change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.live.access.roles import Role
from tests.support.served import ROOT, Served

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler with TLS and tokens."""
    with Served(tmp_path_factory.mktemp("wrong") / "s", tls=True) as served:
        yield served


def queue(served: Served, tmp_path: Path, address: str, ca: str = "") -> tuple[int, str]:
    """Run `gavel queue` as a user; return its exit code and its error."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")},
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(tmp_path),
        "GAVEL_ADDRESS": address,
        "GAVEL_TOKEN": served.secret(Role.USER),
    }
    env |= {"GAVEL_CA": ca} if ca else {}
    command = [sys.executable, "-m", "gavel", "queue"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stderr.strip()


def test_users_get_the_remedy_for_wrong_ports_and_missing_tls(served: Served, tmp_path: Path) -> None:
    """Each mistake gives one line and code 4: no CA, the agents' port, a port without TLS."""
    ca = str(served.folder / "data" / "tls" / "ca.pem")
    with Served(tmp_path / "plain", tls=False) as plain:
        answers = [
            queue(served, tmp_path, served.address),
            queue(served, tmp_path, served.agents_address, ca),
            queue(served, tmp_path, plain.address, ca),
        ]
    for (code, words), remedy in zip(
        answers, ("GAVEL_CA", "port for agents", "does not speak TLS"), strict=True
    ):
        assert (code, len(words.splitlines()), remedy in words) == (4, 1, True), words
    assert queue(served, tmp_path, served.address, ca)[0] == 0


def test_an_agent_at_the_users_port_gets_the_right_one(served: Served, tmp_path: Path) -> None:
    """The log of an agent with a good certificate has the agents' address; its waits become longer."""
    served.certify("n1", tmp_path / "certificates")
    host, _, port = served.address.rpartition(":")
    command = (
        *("-m", "worker_agent", "--scheduler", served.address, "--name", "n1", "--gpus", "v100=1"),
        *("--single-user", "--state-dir", str(tmp_path)),
    )
    log = tmp_path / "agent.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    try:
        give_up_s = time.monotonic() + PATIENCE_S
        while f"{host}:{int(port) + 1}" not in log.read_text() and time.monotonic() < give_up_s:
            time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    line = next(line for line in log.read_text().splitlines() if "no link" in line)
    assert "port for people" in line
    assert f"{host}:{int(port) + 1}" in line
    assert "again in" in line
