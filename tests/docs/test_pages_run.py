"""The Python, the shell and the commands of docs/job-file.md and docs/from-slurm.md run against a scheduler."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gavel import Client
from scheduler.core.messages import Exit
from tests.cli.conftest import Gavel, gavel, live, no_settings  # noqa: F401
from tests.support.live_thread import LiveThread

DOCS = Path(__file__).parents[2] / "docs"
JOB_FILE = (DOCS / "job-file.md").read_text(encoding="utf-8")
SLURM = re.findall(r"`gavel ([^`]*)`", (DOCS / "from-slurm.md").read_text(encoding="utf-8"))
# Commands that run until a job has ended, or until the user ends them.
ENDLESS = ("--follow", "-f", "--wait", "wait", "top", "run", "shell")


def block(first: str) -> str:
    """Return the indented block that begins with this text."""
    blocks = re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", JOB_FILE)
    (text,) = [text for text in blocks if text.startswith(f"    {first}")]
    return "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True))


def test_the_python(
    live: LiveThread,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example submits, waits and prints; the job ends as soon as it is submitted."""
    submit = Client.submit

    def ends(client: Client, *arguments: object) -> tuple[str, ...]:
        ids = submit(client, *arguments)  # type: ignore[arg-type]
        lease = live.do(live.daemon.run_job(ids[0]))
        live.do(live.daemon.report("wide", exits=(Exit(lease, "finished", 9.0, 9.0, 1.0, 2.0, 0, ""),)))
        return ids

    monkeypatch.setattr(Client, "submit", ends)
    live.do(live.daemon.node("wide", gpus=4))
    exec(compile(block("from gavel import"), "job-file.md", "exec"), {})
    assert capsys.readouterr().out.startswith("completed ")


@pytest.mark.skipif(shutil.which("jq") is None, reason="the page uses jq, which is not here")
def test_the_shell(live: LiveThread, tmp_path: Path) -> None:  # noqa: F811
    """The second job waits for the first, by the id that jq extracts."""
    for name in ("prepare", "train"):
        (tmp_path / f"{name}.yaml").write_text("command: ['true']\n")
    command = tmp_path / "gavel"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m gavel "$@"\n')
    command.chmod(0o755)
    script = f"set -eu\n{block('first=$(gavel submit')}"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(
        ["bash", "-c", script],
        check=False,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    with Client(live.address) as client:
        assert client.get("2").blocked_by == ("1",)


@pytest.mark.parametrize("command", sorted({*SLURM} - {"token create"}))
def test_commands_of_the_phrasebook(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    """Each command succeeds on a job and a node that exist; commands that run without end are not run.

    `gavel token create` is left out, because it needs a scheduler with tokens; the test of docs/install.md runs it.
    """
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("command: ['true']\n")
    gavel("submit", "job.yaml")
    live.do(live.daemon.run_job("1"))
    live.do(live.daemon.node("wide", gpus=4))
    words = [{"JOB": "1", "N": "n1"}.get(word, word) for word in shlex.split(command)]
    before = words[: words.index("--")] if "--" in words else words
    if set(before) & set(ENDLESS) and words[0] != "top":
        # test_cli_doc checks their options.
        return
    if words == ["hold"]:
        words.append("1")
    if words[-1] == "--dry-run":
        words.append("job.yaml")
    result = gavel(*words, *(["--yes"] if "--all" in words else []))
    assert result.exit_code == 0, result.stderr
