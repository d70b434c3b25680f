"""The shim, with real processes: it owns them all, obeys the lease, and records how the run ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.wording import Wording
from tests.worker_agent.shim_runs import PATIENCE_S, ShimRun, gone, python, shim_run, stop, wait_for
from worker_agent.shim.child import reset_oom_score
from worker_agent.shim.exit_file import RETRY_S
from worker_agent.shim.run_directory import EXIT, START, RunDirectory

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
POLITE = (
    "import os, signal, sys, time\n"
    "signal.signal(15, lambda *_: (os.write(1, b'saved\\n'), sys.exit(0)))\n"
    "print('here', flush=True)\n"
    "time.sleep(600)"
)
# A grandchild that has left the session, the group and its parent prints its pid and keeps running.
ORPHAN = (
    "import os, sys, time\n"
    "read_end, write_end = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print('orphan', os.getpid(), flush=True)\n"
    "        os.write(write_end, b'.')\n"
    "        time.sleep(600)\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "os.read(read_end, 1)\n"
    "time.sleep(float(sys.argv[1]))"
)


def test_a_run_ends_with_the_codes_of_all_ranks(tmp_path: Path) -> None:
    """Each rank's output is in a log of its own, and no process and no file is left over."""
    hello = "import os; print('hello from', os.environ['PATH'][:1], flush=True); os.write(2, b'and stderr')"
    with shim_run(tmp_path, python(hello), python("print('the other')")) as run:
        exit = run.ended()
        assert exit["codes"] == {"0": 0, "1": 0}
        assert (exit["first"], exit["signalled"], exit["killed"], exit["error"]) == (None, False, False, "")
        assert 0 < exit["ended_s"] - exit["started_s"] < PATIENCE_S
        assert run.log(0) == "hello from /\nand stderr"
        assert run.log(1) == "the other\n"
        assert {path.name for path in run.path.iterdir()} == {
            *("start.json", "lease.json", "shim.json", "exit.json", "logs")
        }


def test_shim_json_names_the_processes(tmp_path: Path) -> None:
    """The shim and the leaders, each with its start time; each leader leads a session."""
    with shim_run(tmp_path, python(SLEEP), python(SLEEP)) as run:
        state = run.running()
        assert run.shim is not None
        assert state["pid"] == run.shim.pid
        assert len(state["pids"]) == len(state["pids_start_ticks"]) == 2
        assert [os.getsid(pid) for pid in state["pids"]] == state["pids"]
        assert os.getsid(state["pid"]) == state["pid"]


def test_a_polite_job_is_signalled_and_saves(tmp_path: Path, wording: Wording) -> None:
    """SIGTERM at signal_s; a script that saves then and ends with 0 gets the time for it."""
    with shim_run(tmp_path, python(POLITE)) as run:
        run.says("here")
        run.lease(0, 0, 600, "another job's turn")
        exit = run.ended()
        assert (exit["codes"], exit["signalled"], exit["killed"]) == ({"0": 0}, True, False)
        assert "saved" in run.log()
        wording(run.says("SIGTERM"))


def test_a_job_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    """The shim kills it at kill_s, and not before."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        run.lease(0, 0, 600)
        run.says("SIGTERM")
        times = run.lease(0, 0, 0.4)
        exit = run.ended()
        assert (exit["codes"], exit["signalled"], exit["killed"]) == ({"0": -9}, True, True)
        assert exit["ended_s"] >= times["kill_s"]


@pytest.mark.parametrize("trick", ["os.unlink(name)", "os.rename(name, 'x'); open(name, 'w')"])
def test_a_job_cannot_take_its_exit_away(tmp_path: Path, trick: str) -> None:
    """A job may remove the file reserved for its exit: the code is recorded all the same, and at once."""
    code = f"import os, sys; name = '.exit.json.room'; {trick}; sys.exit(7)"
    with shim_run(tmp_path, python(code)) as run:
        assert run.ended(RETRY_S / 2)["codes"] == {"0": 7}


@pytest.mark.parametrize("stays_s", [0, 600])
def test_orphans_do_not_outlive_the_lease(tmp_path: Path, stays_s: float) -> None:
    """A double fork and a session of its own hide no process, whether the rank ends by itself or is killed."""
    with shim_run(tmp_path, python(ORPHAN, stays_s)) as run:
        orphan = int(run.says("orphan").split()[1])
        if stays_s:
            assert not gone(orphan)
            run.lease(0, 0, 0)
        run.ended()
        assert gone(orphan)


def test_a_job_that_forks_without_end_is_killed(tmp_path: Path) -> None:
    """A chain of processes, each of which starts the next and ends."""
    # The chain ends by itself after a minute, so that a killed test run leaves nothing running.
    chain = (
        "import os, time\nend = time.monotonic() + 60\nprint('here', flush=True)\n"
        "while os.fork() == 0 and time.monotonic() < end: time.sleep(0.002)\nos._exit(0)"
    )
    keep = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    with shim_run(tmp_path, python(keep, *python(chain))) as run:
        run.says("here")
        run.lease(0, 0, 0)
        run.ended()
        from worker_agent.shim.process_tree import started_with

        assert started_with("GAVEL_RUN_DIR", str(run.path)) == []


def test_data_loaders_are_not_signalled_first(tmp_path: Path) -> None:
    """SIGTERM goes to the leader alone: its workers live while it saves."""
    loader = (
        "import os, signal, subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "def save(*_):\n"
        "    time.sleep(0.3)\n"
        "    print('worker', worker.poll(), flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(15, save)\n"
        "print('here', flush=True)\n"
        "time.sleep(600)"
    )
    with shim_run(tmp_path, python(loader)) as run:
        run.says("here")
        run.lease(0, 0, 600)
        run.ended()
        assert "worker None" in run.log()


def test_a_rank_that_dies_takes_the_others_with_it(tmp_path: Path, wording: Wording) -> None:
    """The others get SIGTERM; the code of the first is the reason, and no lease is to blame."""
    dies = "import os, sys, time\nwhile not os.path.exists('dies'): time.sleep(0.01)\nsys.exit(3)"
    with shim_run(tmp_path, python(POLITE), python(dies), python(SLEEP)) as run:
        run.says("here", 0)
        (run.path / "dies").touch()
        exit = run.ended()
        assert exit["codes"] == {"0": 0, "1": 3, "2": -15}
        assert (exit["first"], exit["signalled"], exit["killed"]) == (1, False, False)
        wording(run.says("exit code 3"))


def test_a_rank_that_is_done_leaves_the_others_alone(tmp_path: Path) -> None:
    """Code 0 is no death."""
    with shim_run(tmp_path, python("pass"), python("import time; time.sleep(0.4)")) as run:
        assert run.ended()["codes"] == {"0": 0, "1": 0}


def test_a_stopped_job_is_killed_all_the_same(tmp_path: Path) -> None:
    """SIGSTOP keeps no process alive."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        os.kill(run.running()["pids"][0], signal.SIGSTOP)
        run.lease(0, 0, 0.3)
        assert run.ended()["codes"] == {"0": -9}


def test_a_shim_that_was_stopped_acts_by_the_clock(tmp_path: Path) -> None:
    """A shim that is continued after the end of the lease kills the job at once."""
    with shim_run(tmp_path, python(POLITE)) as run:
        run.says("here")
        assert run.shim is not None
        stop(run.shim.pid)
        times = run.lease(0, 0, 0.2)
        wait_for(lambda: time.monotonic() > times["kill_s"])
        os.kill(run.shim.pid, signal.SIGCONT)
        exit = run.ended()
        assert (exit["codes"], exit["killed"]) == ({"0": -9}, True)


def test_sigterm_to_the_shim_ends_its_job(tmp_path: Path) -> None:
    """The signal, which the machine's shutdown sends, counts as an end of the lease."""
    with shim_run(tmp_path, python(POLITE)) as run:
        run.says("here")
        assert run.shim is not None
        run.shim.terminate()
        exit = run.ended()
        assert (exit["codes"], exit["signalled"]) == ({"0": 0}, True)


def test_leaders_die_with_their_shim(tmp_path: Path) -> None:
    """A shim that the kernel killed leaves no leader behind, even with no agent to clean up."""
    with shim_run(tmp_path, python(DEAF)) as run:
        leader = run.running()["pids"][0]
        assert run.shim is not None
        run.shim.kill()
        wait_for(lambda: gone(leader))
        assert not run.run.has(EXIT)


# ------------------------------------------------------------------------------------------------------- setup


def test_jobs_do_not_inherit_the_agents_protection_from_the_oom_killer(tmp_path: Path) -> None:
    """An agent and its shims may be protected; when memory is short, the kernel should take a job first."""
    dear = "open('/proc/self/oom_score_adj', 'w').write('-500')"
    if subprocess.run([sys.executable, "-c", dear], check=False, capture_output=True).returncode:
        pytest.skip("only root may do that")
    run = ShimRun(tmp_path, python("print('the score is', open('/proc/self/oom_score_adj').read())"))
    run.start(dear)
    try:
        run.ended()
        assert run.log().strip() == "the score is 0"
    finally:
        run.close()


@pytest.mark.parametrize(("before", "after"), [("-500\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")])
def test_only_a_protecting_oom_score_is_reset(tmp_path: Path, before: str, after: str) -> None:
    """An ordinary score stays, and so does one with which an operator exposed jobs."""
    score = tmp_path / "oom_score_adj"
    score.write_text(before)
    reset_oom_score(str(score))
    assert score.read_text() == after


def test_the_setup_comes_first(tmp_path: Path) -> None:
    """The setup ends before the ranks start, and writes into the log of the first."""
    setup = python("import time; time.sleep(0.2); open('made', 'w').write('x'); print('set up')")
    with shim_run(tmp_path, python("print(open('made').read())"), setup=setup) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "set up\nx\n"


def test_a_setup_that_fails_starts_nothing(tmp_path: Path, wording: Wording) -> None:
    """The job has failed, and its exit names the setup."""
    with shim_run(tmp_path, python("print('ran')"), setup=python("raise SystemExit(4)")) as run:
        exit = run.ended()
        wording(exit["error"])
        assert exit["codes"] == {"0": 4}
        assert "ran" not in run.log()


def test_a_lease_that_ends_during_the_setup_is_no_failure(tmp_path: Path) -> None:
    """The setup is signalled as a rank is, and the ranks never start."""
    with shim_run(tmp_path, python("print('ran')"), setup=python(SLEEP)) as run:
        run.says("here")
        run.lease(0, 0, 600)
        exit = run.ended()
        assert (exit["error"], exit["signalled"], exit["codes"]) == ("", True, {"0": -15})
        assert "ran" not in run.log()


# ------------------------------------------------------------------------------------------- what cannot start


def test_a_missing_command_is_named(tmp_path: Path, wording: Wording) -> None:
    """In exit.json and in the log; ranks that did start are ended."""
    with shim_run(tmp_path, python(SLEEP), ["no-such-command"]) as run:
        exit = run.ended()
        assert "no-such-command" in exit["error"]
        assert exit["error"] in run.log()
        wording(exit["error"])
        assert (exit["codes"]["1"], exit["killed"]) == (127, False)


@pytest.mark.parametrize(
    ("argv", "start", "word"),
    [
        (["/etc/passwd"], {}, "/etc/passwd: Permission denied"),
        (python("pass"), {"cwd": "/no/such/place"}, "/no/such/place: No such file"),
        (python("pass"), {"cwd": "/etc/passwd"}, "/etc/passwd: Not a directory"),
        (["a\0b"], {}, "embedded null"),
        (python("pass"), {"uid": 0, "gid": 0}, "uid 0"),
        (python("pass"), {"uid": 12345, "gid": 0}, "uid 12345, gid 0"),
    ],
    ids=["no program", "no directory", "a file as directory", "null byte", "root", "group of root"],
)
def test_a_start_that_fails_names_the_reason(
    tmp_path: Path, argv: list[str], start: dict[str, object], word: str, wording: Wording
) -> None:
    """Exit file and log have the reason in one line."""
    with shim_run(tmp_path, argv, **start) as run:
        exit = run.ended()
        assert word in exit["error"]
        assert word in run.log()
        wording(exit["error"], detail=re.compile(r"embedded null.*"))


def test_the_checkpoint_directory_is_created(tmp_path: Path) -> None:
    """The job's own process creates it, as its user."""
    run = ShimRun(tmp_path, python("import os; print(os.path.isdir(os.environ['GAVEL_CHECKPOINT_DIR']))"))
    try:
        start = run.run.read(START)
        assert start is not None
        start["ranks"][0]["env"]["GAVEL_CHECKPOINT_DIR"] = str(tmp_path / "made" / "below")
        run.run.write(START, start)
        run.start().ended()
        assert run.log() == "True\n"
    finally:
        run.close()


def test_a_run_is_executed_once(tmp_path: Path, wording: Wording) -> None:
    """A second shim finds the first at work, or the run over, and touches nothing."""
    with shim_run(tmp_path, python(SLEEP)) as run:
        leader = run.running()["pids"][0]
        with RunDirectory(run.path) as again:
            assert again.lock() is None
        second = ShimRun.__new__(ShimRun)
        second.path = run.path
        second.start()
        assert second.shim is not None
        second.shim.wait()
        wording(second.troubles(), folder=tmp_path)
        assert not gone(leader)


def test_a_setup_that_does_not_end_is_killed(tmp_path: Path, wording: Wording) -> None:
    """After its limit it is killed with all its processes, and nothing else runs; the reason names the limit."""
    with shim_run(tmp_path, python("print('ran')"), setup=python(ORPHAN, 600), setup_limit_s=8.0) as run:
        orphan = int(run.says("orphan").split()[1])
        exit = run.ended()
        assert ("8 s" in exit["error"], "setup_limit" in exit["error"]) == (True, True)
        wording(exit["error"])
        assert (exit["codes"], exit["signalled"], exit["killed"]) == ({}, False, False)
        assert gone(orphan)
        assert "ran" not in run.log().split()


def test_a_setup_within_its_limit_leaves_the_ranks_alone(tmp_path: Path) -> None:
    """The ranks may take longer than the limit."""
    sleeps = "import time; time.sleep(3.2); print('ran')"
    with shim_run(tmp_path, python(sleeps), setup=["echo", "set up"], setup_limit_s=3.0) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "set up\nran\n"
