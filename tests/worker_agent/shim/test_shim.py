"""The shim, with real processes: it owns them all, obeys the lease, and says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
# a grandchild that has left the session, the group and its parent: it says its pid and stays
ORPHAN = (
    "import os, sys, time\n"
    "told, tell = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print('orphan', os.getpid(), flush=True)\n"
    "        os.write(tell, b'.')\n"
    "        time.sleep(600)\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "os.read(told, 1)\n"
    "time.sleep(float(sys.argv[1]))"
)


def test_a_run_to_completion(tmp_path: Path) -> None:
    """Codes of all ranks, their output in a log each, and nothing that is left over."""
    hello = "import os; print('hello from', os.environ['PATH'][:1], flush=True); os.write(2, b'and stderr')"
    with shim_run(tmp_path, python(hello), python("print('the other')")) as run:
        said = run.ended()
        assert said["codes"] == {"0": 0, "1": 0}
        assert (said["first"], said["signalled"], said["killed"], said["error"]) == (None, False, False, "")
        assert 0 < said["ended_s"] - said["started_s"] < PATIENCE_S
        assert run.log(0) == "hello from /\nand stderr"
        assert run.log(1) == "the other\n"
        assert {path.name for path in run.path.iterdir()} == {
            *("start.json", "lease.json", "shim.json", "exit.json", "logs")
        }


def test_who_they_are_can_be_read(tmp_path: Path) -> None:
    """shim.json names the shim and the leaders, each with the moment of its start; leaders lead a session each."""
    with shim_run(tmp_path, python(SLEEP), python(SLEEP)) as run:
        said = run.running()
        assert run.shim is not None
        assert said["pid"] == run.shim.pid
        assert len(said["pids"]) == len(said["pids_start_ticks"]) == 2
        assert [os.getsid(pid) for pid in said["pids"]] == said["pids"]
        assert os.getsid(said["pid"]) == said["pid"]


def test_a_polite_job_is_signalled_and_saves(tmp_path: Path) -> None:
    """SIGTERM at signal_s; a script that saves on it and ends with 0 is given the time."""
    with shim_run(tmp_path, python(POLITE)) as run:
        run.says("here")
        run.lease(0, 0, 600, "another job's turn")
        said = run.ended()
        assert (said["codes"], said["signalled"], said["killed"]) == ({"0": 0}, True, False)
        assert "saved" in run.log()
        assert "[gavel: SIGTERM: the lease is over (another job's turn)]" in run.log()


def test_who_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    """At kill_s, and not before."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        run.lease(0, 0, 600)
        run.says("SIGTERM")
        times = run.lease(0, 0, 0.4)
        said = run.ended()
        assert (said["codes"], said["signalled"], said["killed"]) == ({"0": -9}, True, True)
        assert said["ended_s"] >= times["kill_s"]


@pytest.mark.parametrize("trick", ["os.unlink(name)", "os.rename(name, 'x'); open(name, 'w')"])
def test_a_job_cannot_take_its_exit_away(tmp_path: Path, trick: str) -> None:
    """The room that was kept for it is gone: the code is said all the same, and at once."""
    code = f"import os, sys; name = '.exit.json.room'; {trick}; sys.exit(7)"
    with shim_run(tmp_path, python(code)) as run:
        assert run.ended(RETRY_S / 2)["codes"] == {"0": 7}


@pytest.mark.parametrize("stays_s", [0, 600])
def test_orphans_do_not_outlive_the_lease(tmp_path: Path, stays_s: float) -> None:
    """A double fork and a session of its own hide nobody, whether the rank ends by itself or is killed."""
    with shim_run(tmp_path, python(ORPHAN, stays_s)) as run:
        orphan = int(run.says("orphan").split()[1])
        if stays_s:
            assert not gone(orphan)
            run.lease(0, 0, 0)
        run.ended()
        assert gone(orphan)


def test_who_forks_without_end_is_caught(tmp_path: Path) -> None:
    """A chain of processes, each of which starts the next and leaves."""
    chain = (  # that ends by itself one day, so that a test run that is killed leaves nothing running
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


def test_a_rank_that_dies_takes_the_others_with_it(tmp_path: Path) -> None:
    """They are told by SIGTERM; the code of the first says why, and no lease is to blame."""
    dies = "import os, sys, time\nwhile not os.path.exists('dies'): time.sleep(0.01)\nsys.exit(3)"
    with shim_run(tmp_path, python(POLITE), python(dies), python(SLEEP)) as run:
        run.says("here", 0)
        (run.path / "dies").touch()
        said = run.ended()
        assert said["codes"] == {"0": 0, "1": 3, "2": -15}
        assert (said["first"], said["signalled"], said["killed"]) == (1, False, False)
        assert "[gavel: rank 1 ended with exit code 3: the others are stopped]" in run.log()


def test_a_rank_that_is_done_leaves_the_others_alone(tmp_path: Path) -> None:
    """Code 0 is no death."""
    with shim_run(tmp_path, python("pass"), python("import time; time.sleep(0.4)")) as run:
        assert run.ended()["codes"] == {"0": 0, "1": 0}


def test_a_stopped_job_is_killed_all_the_same(tmp_path: Path) -> None:
    """SIGSTOP keeps nobody alive."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        os.kill(run.running()["pids"][0], signal.SIGSTOP)
        run.lease(0, 0, 0.3)
        assert run.ended()["codes"] == {"0": -9}


def test_a_stopped_shim_goes_on_where_time_is(tmp_path: Path) -> None:
    """Continued after the end of the lease, it kills first; the clock has not waited."""
    with shim_run(tmp_path, python(POLITE)) as run:
        run.says("here")
        assert run.shim is not None
        stop(run.shim.pid)
        times = run.lease(0, 0, 0.2)
        wait_for(lambda: time.monotonic() > times["kill_s"])
        os.kill(run.shim.pid, signal.SIGCONT)
        said = run.ended()
        assert (said["codes"], said["killed"]) == ({"0": -9}, True)


def test_the_shim_can_be_told_to_stop(tmp_path: Path) -> None:
    """SIGTERM to it, as at the machine's shut-down, is an end of the lease."""
    with shim_run(tmp_path, python(POLITE)) as run:
        run.says("here")
        assert run.shim is not None
        run.shim.terminate()
        said = run.ended()
        assert (said["codes"], said["signalled"]) == ({"0": 0}, True)


def test_leaders_die_with_their_shim(tmp_path: Path) -> None:
    """A shim killed for want of memory leaves no leader behind, even with no agent to clean up."""
    with shim_run(tmp_path, python(DEAF)) as run:
        leader = run.running()["pids"][0]
        assert run.shim is not None
        run.shim.kill()
        wait_for(lambda: gone(leader))
        assert not run.run.has(EXIT)


# ------------------------------------------------------------------------------------------------------- setup


def test_the_kernel_rather_takes_a_job_than_its_agent(tmp_path: Path) -> None:
    """For want of memory: an agent that is kept from it, and its shims, keep that to themselves."""
    dear = "open('/proc/self/oom_score_adj', 'w').write('-500')"
    if subprocess.run([sys.executable, "-c", dear], check=False, capture_output=True).returncode:
        pytest.skip("only root may do that")
    run = ShimRun(tmp_path, python("print('mine is', open('/proc/self/oom_score_adj').read())"))
    run.start(dear)
    try:
        run.ended()
        assert run.log().strip() == "mine is 0"
    finally:
        run.close()


@pytest.mark.parametrize(("before", "after"), [("-500\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")])
def test_a_score_that_keeps_from_the_kernel_is_given_up(tmp_path: Path, before: str, after: str) -> None:
    """Where it is an ordinary one, or an operator made jobs cheaper, it stays."""
    score = tmp_path / "oom_score_adj"
    score.write_text(before)
    reset_oom_score(str(score))
    assert score.read_text() == after


def test_setup_comes_first(tmp_path: Path) -> None:
    """It ends before the ranks start, and writes into the log of the first."""
    setup = python("import time; time.sleep(0.2); open('made', 'w').write('x'); print('set up')")
    with shim_run(tmp_path, python("print(open('made').read())"), setup=setup) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "set up\nx\n"


def test_setup_that_fails_starts_nothing(tmp_path: Path) -> None:
    """The job has failed, and says at what."""
    with shim_run(tmp_path, python("print('ran')"), setup=python("raise SystemExit(4)")) as run:
        said = run.ended()
        assert said["error"] == "setup ended with exit code 4: nothing was started"
        assert said["codes"] == {"0": 4}
        assert "ran" not in run.log()


def test_a_lease_that_ends_during_setup(tmp_path: Path) -> None:
    """Setup is signalled as a rank is, and the ranks never start: that is no failure of the job."""
    with shim_run(tmp_path, python("print('ran')"), setup=python(SLEEP)) as run:
        run.says("here")
        run.lease(0, 0, 600)
        said = run.ended()
        assert (said["error"], said["signalled"], said["codes"]) == ("", True, {"0": -15})
        assert "ran" not in run.log()


# ------------------------------------------------------------------------------------------- what cannot start


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    """A clear word, in exit.json and in the log; ranks that did start are ended."""
    with shim_run(tmp_path, python(SLEEP), ["no-such-command"]) as run:
        said = run.ended()
        assert said["error"] == "cannot run no-such-command: No such file or directory (looked for in PATH)"
        assert "cannot run no-such-command" in run.log()
        assert (said["codes"]["1"], said["killed"]) == (127, False)


@pytest.mark.parametrize(
    ("argv", "start", "word"),
    [
        (["/etc/passwd"], {}, "cannot run /etc/passwd: Permission denied"),
        (python("pass"), {"cwd": "/no/such/place"}, "working directory /no/such/place: No such file"),
        (python("pass"), {"cwd": "/etc/passwd"}, "working directory /etc/passwd: Not a directory"),
        (["a\0b"], {}, "embedded null"),
        (python("pass"), {"uid": 0, "gid": 0}, "a job may not run as uid 0"),
        (python("pass"), {"uid": 12345, "gid": 0}, "a job may not run as uid 12345, gid 0"),
    ],
)
def test_what_is_wrong_with_a_start_is_said(
    tmp_path: Path, argv: list[str], start: dict[str, object], word: str
) -> None:
    """Each in one line that names it."""
    with shim_run(tmp_path, argv, **start) as run:
        said = run.ended()
        assert word in said["error"]
        assert word in run.log()


def test_a_checkpoint_directory_is_made(tmp_path: Path) -> None:
    """By the job's own process, as its user."""
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


def test_a_run_is_carried_out_once(tmp_path: Path) -> None:
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
        assert "another shim carries it out already" in second.troubles()
        assert not gone(leader)


def test_a_setup_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """After its limit it is killed with all that it started, and nothing else runs; the reason names the limit."""
    with shim_run(tmp_path, python("print('ran')"), setup=python(ORPHAN, 600), setup_limit_s=1.0) as run:
        orphan = int(run.says("orphan").split()[1])
        said = run.ended()
        assert said["error"] == "setup did not end within 1 s (setup_limit): nothing was started"
        assert (said["codes"], said["signalled"], said["killed"]) == ({}, False, False)
        assert gone(orphan)
        assert "ran" not in run.log().split()


def test_a_setup_within_its_limit_leaves_the_ranks_alone(tmp_path: Path) -> None:
    """They may take longer than it."""
    sleeps = "import time; time.sleep(3.2); print('ran')"
    with shim_run(tmp_path, python(sleeps), setup=["echo", "set up"], setup_limit_s=3.0) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "set up\nran\n"
