"""The commands of docs/install.md and docs/operations.md run unchanged, on one machine in every role.

Scripts replace `sudo`, `systemctl` and commands that create users; paths below / are moved into a folder of
the test.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.live.access.tls import Keys
from tests.e2e.cluster import PATIENCE_S, eventually, processes_of
from tests.support.ports import free_port
from worker_agent.shim import process_tree

ROOT = Path(__file__).parents[2]
PAGES = ("install", "operations")
STAND_INS = {
    "sudo": 'if [ "$1" = -u ]; then shift 2; fi; exec "$@"',
    "useradd": "exit 0",
    "install": 'args=(); while [ $# -gt 0 ]; do case "$1" in -o|-g) shift;; *) args+=("$1");; esac; shift; done; '
    'exec /usr/bin/install "${args[@]}"',
    "systemctl": """
case "$1" in
  enable|start) unit=${@: -1}
    line=$(sed -n "s#^ExecStart=##p" "$SANDBOX/etc/systemd/system/$unit.service")
    setsid nohup $line >> "$SANDBOX/$unit.log" 2>&1 < /dev/null &
    echo $! > "$SANDBOX/$unit.pid"
    word="listening on"; [ "$unit" = gavel-agent ] && word="linked to the scheduler"
    for _ in $(seq 1200); do tail -n 3 "$SANDBOX/$unit.log" | grep -q "$word" && exit 0; sleep 0.05; done; exit 1;;
  stop) pid=$(cat "$SANDBOX/$2.pid"); kill "$pid"
    # Wait until the process has ended; a zombie has ended, too.
    while grep -qs "^State:[[:space:]]*[^ZX[:space:]]" "/proc/$pid/status"; do sleep 0.05; done;;
esac""",
}


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


class Sandbox:
    """One machine that is scheduler, node and terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port(in_a_row=2)
        (folder / "bin").mkdir()
        for name, body in STAND_INS.items():
            path = folder / "bin" / name
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        gavel = folder / "bin" / "gavel"
        gavel.write_text(f'#!/bin/bash\nexec {sys.executable} -m gavel "$@"\n')
        gavel.chmod(0o755)
        for part in ("etc/systemd/system", "etc/gavel", "var/lib", "home"):
            (folder / part).mkdir(parents=True)
        (folder / "deploy").mkdir()
        for path in filter(Path.is_file, (ROOT / "deploy").iterdir()):
            (folder / "deploy" / path.name).write_text(self.moved(path.read_text()))

    def moved(self, text: str) -> str:
        """Return a text with its paths and addresses moved to this machine and this folder."""
        text = text.replace("/opt/gavel/bin/gavel", str(self.folder / "bin" / "gavel"))
        text = re.sub(r"(?<![\w/])/(etc|var/lib|shared)/", rf"{self.folder}/\1/", text)
        text = text.replace("--host head-node", f"--host localhost --port {self.port}")
        text = text.replace("head-node:7070", f"localhost:{self.port}").replace(
            "head-node:7071", f"localhost:{self.port + 1}"
        )
        if "sha256:…" in text:
            text = text.replace("sha256:…", Keys(self.folder / "var/lib/gavel/tls").fingerprint())
        return text.replace("--switch-users", "--single-user --gpus v100=1 --name n1")

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a page with bash."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL")}
        env |= {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "XDG_CONFIG_HOME": str(self.folder / "home" / ".config"),
            "SANDBOX": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.moved(line)],
            cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A machine whose processes are killed after the test."""
    yield Sandbox(tmp_path)
    for path in tmp_path.glob("*.pid"):
        for process in process_tree.descendants(int(path.read_text())):
            process_tree.send(process, signal.SIGKILL)
    process_tree.kill_all(lambda: processes_of(tmp_path))


def lines(name: str) -> list[str]:
    """Return the commands of a page in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page(name), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def test_both_pages_from_an_empty_machine_to_a_restored_one(sandbox: Sandbox) -> None:
    """Every line of install and then of operations, from `init` to a restore, ends with exit code 0."""
    commands = [*lines("install"), *lines("operations")]
    (hello,) = [line for line in commands if line.startswith("gavel submit --name hello -f")]
    assert {"gavel backup gavel.tar.gz", 'gavel drain n1 --reason "its fan"'} <= set(commands)
    for line in commands:
        if line.startswith(("sudo python3 -m venv", "sudo /opt/gavel/bin/pip", "sudo ln -sf")):
            # Gavel is installed here already.
            continue
        done = sandbox.run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if line == hello:
            assert done.stdout.splitlines()[-1] == "hello"
        if line.startswith("sudo systemctl start gavel-scheduler"):
            # The restored scheduler gets its node back without help.
            eventually(lambda: " up " in sandbox.run("gavel nodes").stdout, "n1 is up")
            assert '"completed"' in sandbox.run("gavel show hello --json").stdout


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_settings_in_the_text_exist(name: str) -> None:
    """Every `gavel …` names a command; every `section.key` names a setting."""
    from gavel.cli.main import main
    from protos.files.example import example_settings
    from scheduler.live.config import DaemonConfig

    text = page(name)
    commands = set(re.findall(r"`(?:sudo )?gavel (\w+)", text))
    assert commands <= set(main.list_commands(None))  # type: ignore[arg-type]
    example = example_settings(DaemonConfig, "Settings")
    for key in re.findall(r"`(?:scheduler|agents|keeping|people)\.(\w+)", text):
        assert re.search(rf"^#?{key} = ", example, re.M), key


def texts_of_the_code() -> str:
    """Return all texts in the code, with … in place of values."""
    texts = []
    for package in ("gavel", "scheduler", "worker_agent"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    texts.append(
                        "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def test_messages_in_the_table_are_real() -> None:
    """Every message of the table is in the code word for word, but for its values, or is the operating system's."""
    table = page("operations").partition("## When something is wrong")[2]
    messages = re.findall(r"^\| `(.*?)` \|", table, re.M)
    assert len(messages) > 15
    texts = texts_of_the_code().replace("`", "")
    for message in messages:
        if message == os.strerror(28).lower():
            continue
        for part in re.split(r"…|\b[NM]\b|'n1'|server\.pem", message):
            assert part.strip() in texts, f"no text has '{part.strip()}' of '{message}'"
