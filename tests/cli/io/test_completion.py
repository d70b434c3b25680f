"""What Tab offers, asked as shells ask: ids and names from the scheduler, and nothing on trouble."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from scheduler.live.access.roles import Role
from tests.cli.conftest import Gavel
from tests.cli.live import command_with, finish
from tests.support.live_thread import LiveThread

DEADLINE_S = 60.0
# With time enough for the scheduler to answer on a busy machine.
PATIENT = command_with("gavel.cli.io.completion", "DEADLINE_S", DEADLINE_S)


def offered(line: str, shell: str = "bash", **environ: str) -> list[str]:
    """Return the words that a shell would offer at the end of this line."""
    words = line.split(" ")
    # fish passes the word itself, other shells its position.
    position = words[-1] if shell == "fish" else str(len(words) - 1)
    question = {"_GAVEL_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": position}
    done = subprocess.run(
        [sys.executable, "-c", PATIENT],
        env={**os.environ, **environ, **question},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stderr == ""
    if shell == "zsh":
        return done.stdout.splitlines()
    return [entry.removeprefix("plain,") for entry in done.stdout.splitlines() if entry]


@pytest.fixture
def jobs(live: LiveThread, gavel: Gavel) -> LiveThread:
    """Six jobs: 1 runs, 2 has ended, 3 is held, 4 and 5 share a name, and 6 is an array of three."""
    gavel("submit", "-n", "chat", "--", "true")
    live.do(live.daemon.run_job("1"))
    gavel("submit", "-n", "done", "--", "true")
    finish(live, "2")
    gavel("submit", "-n", "later", "--", "true")
    gavel("hold", "3")
    for _ in range(2):
        gavel("submit", "-g", "2", "-n", "twin", "--", "true")
    gavel("submit", "-g", "2", "-n", "sweep", "--array", "0-2", "--", "true")
    return live


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gavel show ", ["6", "5", "4", "3", "2", "1", "sweep", "later", "done", "chat"]),
        ("gavel logs ch", ["chat"]),
        ("gavel explain 6_", ["6_2", "6_1", "6_0"]),
        ("gavel show 1 chat 3 ", ["6", "5", "4", "2", "sweep", "later", "done"]),
        ("gavel cancel ", ["6", "5", "4", "3", "1", "sweep", "later", "chat"]),
        ("gavel hold l", []),
        ("gavel release ", ["3", "later"]),
        ("gavel requeue ", ["1", "chat"]),
        ("gavel shell ", ["1", "chat"]),
        ("gavel update tw", []),
        ("gavel submit --after la", ["later"]),
        ("gavel nodes ", ["n1"]),
        ("gavel drain n", ["n1"]),
        ("gavel queue --node ", ["n1"]),
        ("gavel queue --worker-type v", ["v100"]),
        ("gavel policy set water_", ["water_filling"]),
    ],
)
def test_words_that_fit_are_offered(line: str, words: list[str], jobs: LiveThread) -> None:
    """Ids come before names; a name of several jobs means none; `cancel` offers only what it can cancel."""
    assert offered(line) == words


def test_all_shells_ask_alike(jobs: LiveThread) -> None:
    """fish and zsh receive the same words, with a note about each."""
    assert offered("gavel requeue ", "fish") == ["1\tchat running", "chat\tjob 1 running"]
    assert offered("gavel requeue ", "zsh") == [
        "plain",
        "1",
        "chat running",
        "plain",
        "chat",
        "job 1 running",
    ]


def test_names_that_a_shell_would_interpret_are_not_offered(live: LiveThread, gavel: Gavel) -> None:
    """A name with a space, a substitution or a leading dash stays out of the command line; its job's id is offered."""
    for name in ("$(reboot)", "a b", "x;y", "*", "`id`"):
        gavel("submit", "-n", name, "--", "true")
    gavel("submit", "--name=--all", "--", "true")
    gavel("submit", "-n", "训练.v2", "--", "true")
    assert offered("gavel cancel ") == ["7", "6", "5", "4", "3", "2", "1", "训练.v2"]


@pytest.mark.parametrize(
    "environ",
    [
        {"GAVEL_ADDRESS": "127.0.0.1:1"},
        {"GAVEL_ADDRESS": "not an address"},
        {"GAVEL_CA": "/does/not/exist"},
        {"GAVEL_CONTEXT": "missing", "GAVEL_ADDRESS": ""},
    ],
    ids=str,
)
def test_trouble_offers_nothing_and_says_nothing(environ: dict[str, str], jobs: LiveThread) -> None:
    """Without a scheduler, with a wrong setting or a wrong token, the line stays as it is."""
    for line in ("gavel show ", "gavel drain ", "gavel queue --worker-type "):
        assert offered(line, **environ) == []


def test_a_damaged_file_of_contexts_offers_nothing(tmp_path: Path, no_settings: None) -> None:
    """The names of stored clusters complete; a file that cannot be read is no reason for a message."""
    folder = tmp_path / "config" / "gavel"
    folder.mkdir(parents=True)
    (folder / "client.toml").write_text('current = ""\n[contexts.lab]\naddress = "lab.example:7070"\n')
    assert offered("gavel queue --context ") == ["lab"]
    assert offered("gavel context l") == ["lab"]
    (folder / "client.toml").write_text("[[[")
    assert offered("gavel queue --context ") == []


def test_jobs_of_others(tmp_path: Path, gavel: Gavel, no_settings: None) -> None:
    """If none of the user's own jobs fits, those of others are offered, but only operators may change them."""
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon", auth="tokens") as live:

        def environ(user: str, role: Role) -> dict[str, str]:
            access = live.daemon.people.access
            assert access is not None
            return {"GAVEL_ADDRESS": live.address, "GAVEL_TOKEN": access.create(user, role, 1000.0)[1]}

        ada, bob = environ("ada", Role.USER), environ("bob", Role.OPERATOR)
        with patch.dict(os.environ, ada):
            gavel("submit", "-n", "chat", "--", "true")
        assert offered("gavel cancel ch", **ada) == ["chat"]
        assert offered("gavel cancel ch", **bob) == ["chat"]
        cleo = environ("cleo", Role.USER)
        assert offered("gavel show ch", **cleo) == ["chat"]
        assert offered("gavel cancel ch", **cleo) == []
        assert offered("gavel show ch", **{**ada, "GAVEL_TOKEN": "wrong"}) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_tab_in_a_real_bash(jobs: LiveThread, tmp_path: Path) -> None:
    """With the script of `gavel completion bash`, Tab completes the name of a job on the line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "patient.py").write_text(PATIENT)
    (folder / "gavel").write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/patient.py "$@"\n')
    (folder / "gavel").chmod(0o755)
    main, side = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PS1": "> ", "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(side)
    os.write(main, b"source <(gavel completion bash)\ngavel requeue ch\t#\n")
    text, until_s = "", time.monotonic() + DEADLINE_S
    while "requeue chat #" not in text and time.monotonic() < until_s:
        if select.select([main], [], [], 0.1)[0]:
            text += os.read(main, 4096).decode()
    shell.kill()
    shell.wait()
    os.close(main)
    assert "requeue chat #" in text, text
