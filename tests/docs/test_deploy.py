"""deploy/: the units start existing commands with existing options, and the examples are right."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_type_hints

import click
import pytest

from gavel.cli.main import main
from scheduler.live.config import DaemonConfig
from tests.cli.conftest import run
from worker_agent.config import AgentConfig, agent_config
from worker_agent.runs.own_groups import AGENT

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def settings(unit: Path) -> dict[str, list[str]]:
    """Return the keys of a unit with their values."""
    values: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


def test_there_is_one_for_each_side() -> None:
    """The scheduler, the agent and the web page have a unit each."""
    names = ["gavel-agent.service", "gavel-scheduler.service", "gavel-web.service"]
    assert [unit.name for unit in UNITS] == names


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_with_its_options(unit: Path) -> None:
    """ExecStart names a command and options that it has; the whole line parses."""
    (line,) = settings(unit)["ExecStart"]
    program, name, *words = shlex.split(line)
    assert Path(program).name == "gavel"
    command = main.get_command(click.Context(main), name)
    assert command is not None
    known = {option for parameter in command.get_params(click.Context(command)) for option in parameter.opts}
    options = [word for word in words if word.startswith("--")]
    assert options
    assert set(options) <= known
    assert run(name, *words, "--help").exit_code == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    """systemd-analyze, where it is installed, finds no unknown key, but for keys of a newer systemd."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze on this machine")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/gavel/bin/gavel", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    # systemd ignores keys that it does not know.
    newer = [line for line in done.stderr.splitlines() if "DelegateSubgroup" not in line]
    assert unit.name not in "\n".join(newer), done.stderr


def test_what_the_units_promise() -> None:
    """Jobs survive a restart of the agent; the scheduler reports when it is ready, and writes only its state."""
    agent, scheduler, web = map(settings, UNITS)
    assert (agent["KillMode"], agent["Restart"]) == (["process"], ["always"])
    # Otherwise the agent could not make control groups for its jobs.
    assert agent["Delegate"] == ["yes"]
    # Otherwise the groups of jobs could have no weights.
    assert agent["DelegateSubgroup"] == [AGENT]
    # Neither the scheduler nor a job depends on the page, and its token is in no environment.
    assert (web["Restart"], "LoadCredential" in web) == (["always"], True)
    assert (scheduler["Type"], scheduler["Restart"]) == (["notify"], ["on-failure"])
    assert (scheduler["ProtectSystem"], scheduler["StateDirectory"]) == (["strict"], ["gavel"])
    (line,) = scheduler["ExecStart"]
    assert "/var/lib/gavel/" in line


def test_the_scheduler_notifies_systemd(tmp_path: Path) -> None:
    """The scheduler sends READY=1, which Type=notify waits for."""
    # The path of a socket must be short, which pytest's folders are not.
    with (
        TemporaryDirectory(dir="/tmp") as short,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{short}/notify")
        manager.settimeout(60)
        daemon = subprocess.Popen(
            [
                *(sys.executable, "-m", "gavel", "serve", "--data-dir", str(tmp_path / "data")),
                *("--listen", "127.0.0.1:0"),
            ],
            env={**os.environ, "NOTIFY_SOCKET": f"{short}/notify"},
            stderr=subprocess.PIPE,
        )
        try:
            assert manager.recv(100) == b"READY=1"
            assert (tmp_path / "data" / "daemon.json").exists()
            daemon.send_signal(signal.SIGTERM)
            _, stderr = daemon.communicate(timeout=60)
        finally:
            daemon.kill()
            daemon.wait()
    assert daemon.returncode == 0, stderr


def test_the_example_of_an_agent_is_right() -> None:
    """The example holds settings of agents, both as delivered and with its comments uncommented."""
    path = DEPLOY / "agent.toml.example"
    whole = re.sub(r"^#(\w+ = )", r"\1", path.read_text(), flags=re.M)
    known = set(get_type_hints(AgentConfig))
    assert set(tomllib.loads(path.read_text())) < set(tomllib.loads(whole)) <= known


def test_the_example_can_be_used(tmp_path: Path) -> None:
    """An agent reads the example."""
    shutil.copy(DEPLOY / "agent.toml.example", tmp_path / "agent.toml")
    config = agent_config(str(tmp_path / "agent.toml"), {"switch_users": True}, {})
    assert config.scheduler == "head-node:7071"


def test_the_variables_are_settings() -> None:
    """Each variable in the example of an environment file is a setting."""
    names = re.findall(r"^#?(GAVEL_(?:SERVE|AGENT)_\w+)=", (DEPLOY / "gavel.env.example").read_text(), re.M)
    known = {f"GAVEL_SERVE_{key}".upper() for key in get_type_hints(DaemonConfig)}
    known |= {f"GAVEL_AGENT_{key}".upper() for key in get_type_hints(AgentConfig)}
    assert names
    assert set(names) <= known
