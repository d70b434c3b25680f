"""The end of a command's process: it skips Python's teardown, and nothing that matters with it."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading
import gavel.cli.main as commands
import gavel.__main__ as program

def main(prog_name):
    atexit.register(print, "a module's own end")
    {body}

commands.main = main
program.run()
"""


def run(body: str) -> tuple[int, str, str]:
    """Run `gavel` with this body in place of its commands; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("3", 3), ("None", 0), ("130", 130)])
def test_the_exit_code_is_kept(code: str, status: int) -> None:
    """The code of the command is that of the process, and all output is there."""
    assert run(f"print('x' * 100_000); sys.exit({code})") == (
        status,
        "x" * 100_000 + "\na module's own end\n",
        "",
    )


def test_other_ends_are_python_s_own() -> None:
    """A message instead of a code is printed, and an error keeps its traceback."""
    assert run("sys.exit('no such thing')") == (1, "a module's own end\n", "no such thing\n")
    status, _, errors = run("raise RuntimeError('broken')")
    assert (status, errors.splitlines()[-1]) == (1, "RuntimeError: broken")


def test_threads_end_first() -> None:
    """A thread that is not a daemon finishes its work before the process ends."""
    work = "lambda: (threading.main_thread().join(), print('thread done'))"
    assert run(f"threading.Thread(target={work}).start(); sys.exit(0)") == (
        0,
        "thread done\na module's own end\n",
        "",
    )


def test_threads_are_silent_after_ctrl_c() -> None:
    """What Ctrl-C breaks off in a thread of a library is not printed; without Ctrl-C it is."""
    fail = "thread = threading.Thread(target=lambda: [][0]); thread.start(); thread.join()"
    interrupt = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    body = f"""
    try:
        {interrupt}
    except KeyboardInterrupt:
        {fail}
        sys.exit(130)"""
    assert run(body) == (130, "a module's own end\n", "")
    assert "IndexError" in run(f"{fail}; sys.exit(0)")[2]
