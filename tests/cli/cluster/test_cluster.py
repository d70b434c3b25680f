"""Commands about nodes, usage and the policy, against a real daemon and against none."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from gavel.cli.cluster import status
from gavel.cli.cluster.nodes import rows
from gavel.cli.main import main
from gavel.client import Client
from gavel.client import results as r
from gavel.client.reading import read
from gavel.client.settings import ADDRESS
from policies.registry import resolve
from protos.gavel.v1 import cluster_pb2
from scheduler.live.node_views import GpuDetails, NodeDetails
from tests.cli.conftest import Gavel, keys
from tests.cli.io.test_terminal import Terminal
from tests.support.live_thread import LiveThread, own_port
from tests.support.wording import Wording


def test_nodes(live: LiveThread, gavel: Gavel) -> None:
    """`nodes` prints a line for each node; for a named node also each GPU with its job, memory or fault."""
    live.do(live.daemon.node("n2", gpus=1, worker_type="a100"))
    gavel("submit", "-g", "2", "--", "true")
    live.do(live.daemon.run_job("1"))
    live.daemon.nodes.news["n1"] = NodeDetails(
        # In the middle of an hour: the age stays "2d12h" however slow the machine is.
        last_message_s=live.daemon.world.now_s() - 60.5 * 3600,
        agent_version="0.1.0",
        gpus={0: GpuDetails(name="V100", memory_gb=16.0, memory_used_gb=3.5, temperature_c=60.0)},
    )
    lines = gavel("nodes").stdout.splitlines()
    assert lines[0].split() == ["node", "type", "state", "busy", "CPUs", "memory", "heard", "jobs,", "why"]
    assert lines[1].split() == ["n1", "v100", "up", "2/2", "32", "128", "GB", "2d12h", "ago", "1"]
    assert lines[2].split() == ["n2", "a100", "up", "0/1"]
    text = gavel("nodes", "n1").stdout
    assert "n1: agent 0.1.0\n" in text
    assert "    0  V100      3.5/16 GB  60  1\n" in text
    assert [keys(r.Node)] * 2 == [set(node) for node in json.loads(gavel("nodes", "--json").stdout)]
    assert gavel("nodes", "zz").exit_code == 3


def test_a_faulty_node_has_the_time_of_its_next_try(wording: Wording) -> None:
    """The reason is followed by the time until the node is tried again."""
    now = datetime(2030, 1, 2, tzinfo=UTC)
    node = cluster_pb2.Node(name="n1", worker_type="a100", state="NODE_STATE_FAULTY", why="3 starts failed")
    node.back.FromDatetime(now + timedelta(seconds=40))
    ((*_, why),) = rows([read(r.Node, node)], now)
    assert (why.startswith(node.why), why.endswith(" 40s")) == (True, True)
    wording(why)


def test_draining(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`drain` reports GPUs that are still busy and exits with the code of its first failure; `remove` asks first."""
    gavel("submit", "--", "true")
    live.do(live.daemon.run_job("1"))
    result = gavel("drain", "zz", "n1")
    assert result.exit_code == 3
    wording(result.stdout)
    wording(result.stderr)
    result = gavel("resume", "n1")
    assert (result.exit_code, live.daemon.world.state.nodes["n1"].state) == (0, "up")
    wording(result.stdout)
    answer = json.loads(gavel("drain", "n1", "zz", "--reason", "its fan", "--json").stdout)
    assert answer["nodes"][0]["why"].endswith(": its fan")
    assert ": its fan" in gavel("nodes").stdout
    assert [node["state"] for node in answer["nodes"]] == ["draining"]
    assert [failure["node"] for failure in answer["failed"]] == ["zz"]
    result = gavel("remove", "n1")
    assert (result.exit_code, "--yes" in result.stderr) == (2, True)
    wording(result.stderr)
    live.do(live.daemon.node("n3", gpus=1))
    result = gavel("remove", "n3", "--yes")
    assert result.exit_code == 6
    wording(result.stderr)
    gavel("drain", "n3")
    wording(gavel("remove", "n3", "--yes").stdout)
    assert "n3" not in live.daemon.world.state.nodes


def test_a_trial_of_a_policy_is_no_fault(
    live: LiveThread, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """While the scheduler tries a policy, the command says so once, and does not claim that calls work again."""
    is_announced = threading.Event()

    def resolve_slowly(spec: str) -> object:
        assert is_announced.wait(90.0)
        return resolve(spec)

    monkeypatch.setattr("scheduler.live.solver.process.resolve", resolve_slowly)
    terminal = Terminal("policy", "set", "las")
    try:
        terminal.read_until("(Ctrl-C stops)")
    finally:
        is_announced.set()
    assert terminal.end() == 0
    wording(re.sub(r"\d+s", "<time>", " ".join(terminal.text.split())))


def test_the_policy(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """The policy is printed and set; an unknown one is refused."""
    assert gavel("policy").stdout.startswith("max_min_fairness\n")
    wording(gavel("policy", "set", "las+packing").stdout)
    answer = json.loads(gavel("policy", "get", "--json").stdout)
    assert ("las+packing", keys(r.Allocation)) == (answer["policy"], set(answer["allocation"]))
    result = gavel("policy", "set", "nix")
    assert (result.exit_code, "'nix'" in result.stderr) == (2, True)
    wording(result.stderr)


def test_status(live: LiveThread, gavel: Gavel) -> None:
    """`status` names the scheduler's address, its busy GPUs, and the caller's identity."""
    gavel("submit", "--", "true")
    lines = gavel("status").stdout.splitlines()
    assert f" at {live.address}, started " in lines[0]
    (gpus,) = [line.split() for line in lines if line.startswith("  GPUs ")]
    assert (gpus[1] in ("0", "1"), gpus[2:4], gpus[-2:]) == (True, ["of", "2"], ["1", "node"])
    answer = json.loads(gavel("status", "--json").stdout)
    assert ({"address", "status", "identity"}, keys(r.Status)) == (set(answer), set(answer["status"]))
    assert answer["identity"]["role"] == "admin"


def test_status_alerts(live: LiveThread, gavel: Gavel) -> None:
    """With `--check`, a warning gives an exit code for monitoring; the output is the same."""
    assert gavel("status", "--check").exit_code == 0
    live.do(live.daemon.report("n1", trouble="disk full"))
    assert [gavel("status", "--check").exit_code, gavel("status").exit_code] == [1, 0]
    assert gavel("status", "--check").stdout.count("disk full") == 1
    assert len(json.loads(gavel("status", "--check", "--json").stdout)["status"]["warnings"]) == 1


def test_a_round_that_is_over(live: LiveThread) -> None:
    """An idle scheduler plans no rounds: the last one is reported as ended, not as ending in the past."""
    with Client(live.address) as client:
        current, identity = client.status(), client.who_am_i()
    now = datetime.now(UTC)
    for end_s, words in ((-120, "round 7, ended 2m ago"), (120, "round 7, ends in 2m")):
        over = replace(current, round=7, round_ends=now + timedelta(seconds=end_s))
        assert words in list(status.lines(over, identity, "", now))[1].plain


def test_top_prints_one_picture_into_a_pipe(live: LiveThread, gavel: Gavel) -> None:
    """Without a terminal no key can end `top`, so it prints one picture of at most 80 columns and ends."""
    gavel("submit", "-g", "2", "-n", "chat", "--", "true")
    live.do(live.daemon.run_job("1"))
    text = gavel("top").stdout
    assert text.startswith("2/2 GPUs busy")
    assert "max_min_fairness" in text.splitlines()[0]
    assert "n1 v100 ██" in text
    assert "chat" in text
    assert "waiting: none" in text
    assert all(len(line) <= 80 for line in text.splitlines())


# ------------------------------------------------------------------------------------------------ no scheduler


@pytest.fixture
def dead_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return an address at which no scheduler answers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("gavel.cli.io.session.RETRY_S", 0.1)
    monkeypatch.setattr("gavel.cli.io.session.CHANGE_RETRY_S", 0.1)
    with own_port() as port:
        monkeypatch.setenv("GAVEL_ADDRESS", f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}"


COMMANDS = [
    ("queue",),
    ("show", "1"),
    ("submit", "--", "true"),
    ("submit", "--dry-run", "--", "true"),
    ("logs", "1"),
    ("cancel", "1", "2"),
    ("hold", "--all"),
    ("release", "1"),
    ("requeue", "1"),
    ("wait", "1"),
    ("explain", "1"),
    ("nodes",),
    ("drain", "n1", "n2"),
    ("resume", "n1"),
    ("remove", "n1", "-y"),
    ("usage",),
    ("shares",),
    ("matrix",),
    ("rounds",),
    ("leases",),
    ("policy",),
    ("policy", "set", "las"),
    ("status",),
    ("top",),
    ("token", "create"),
    ("token", "list"),
    ("token", "revoke", "x"),
    ("token", "join"),
]


def test_commands_without_a_scheduler(dead_address: str, gavel: Gavel, wording: Wording) -> None:
    """Every command prints the same line, with the address it tried and the source of that address. Exit code 4."""
    messages = set()
    for command in COMMANDS:
        result = gavel(*command)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1), command
        name, _, message = result.stderr.partition(": ")
        assert name.split() == ["gavel", *command][: len(name.split())]
        messages.add(message)
    (message,) = messages
    assert (dead_address in message, "GAVEL_ADDRESS" in message) == (True, True)
    wording(message, address=dead_address)


def test_without_any_settings_gavel_up_is_suggested(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Without any scheduler configured, the error has the command that starts one."""
    monkeypatch.delenv("GAVEL_ADDRESS", raising=False)
    monkeypatch.delenv("GAVEL_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("gavel.cli.io.session.RETRY_S", 0.1)
    with own_port() as port:
        address = f"127.0.0.1:{port}"
        monkeypatch.setattr("gavel.client.settings.ADDRESS", address)
        result = gavel("queue")
    assert result.exit_code == 4
    wording(result.stderr, address=address)
    assert ADDRESS == "127.0.0.1:7070"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(gavel: Gavel, shell: str) -> None:
    """The command prints a completion script for each supported shell."""
    assert "_GAVEL_COMPLETE" in gavel("completion", shell).stdout
    assert gavel("completion", "tcsh").exit_code == 2


def test_states_are_completed() -> None:
    """Completion offers the states of jobs."""
    environ = {"_GAVEL_COMPLETE": "bash_complete", "COMP_WORDS": "gavel queue --state pre", "COMP_CWORD": "3"}
    result = CliRunner().invoke(main, [], env=environ, prog_name="gavel")
    assert "preempted" in result.output


def test_trouble_with_a_certificate_is_one_line(tmp_path: Path, dead_address: str) -> None:
    """The gRPC library's own report of a bad certificate does not reach standard error."""
    ca = tmp_path / "ca.pem"
    ca.write_text("no certificate")
    result = subprocess.run(
        [sys.executable, "-m", "gavel", "status"],
        env={**os.environ, "GAVEL_CA": str(ca)},
        capture_output=True,
        text=True,
        check=False,
    )
    *waiting, error = result.stderr.splitlines()
    assert result.returncode == 4
    # On a slow machine the command may have no time left to announce that it waits.
    assert [line[:3] for line in waiting] in (["no "], [])
    assert error.startswith("gavel status: no ")
