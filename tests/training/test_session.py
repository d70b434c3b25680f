"""The thread that watches the lease: signals, forked children, errors, and a rank without the others."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import LeasedIterator, StaleAttempt, session
from gavel.training.environment import run_of
from tests.support.ports import free_port
from tests.training.leases import ROOT, RunDirectory, eventually, under_a_lease


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A lease."""
    return RunDirectory(tmp_path / "run")


@pytest.fixture(autouse=True)
def sigterm_as_it_was() -> Iterator[None]:
    """Restore the handler of SIGTERM, which tests change."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_taken_over_while_a_loop_may_need_it(run: RunDirectory) -> None:
    """The library handles SIGTERM from its first look at the lease to its last report; then the default is back."""
    with under_a_lease(run.environ()) as watching:
        assert signal.getsignal(signal.SIGTERM) == watching._on_sigterm
        assert 0 < watching.time_left_s() < float("inf")
        signal.raise_signal(signal.SIGTERM)
        assert watching.time_left_s() == 0.0
        watching.end(finished=False, steps=3)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_rank_shows_that_it_reads_its_lease(run: RunDirectory) -> None:
    """A rank reports at its first look that it reads leases, so that the shim asks it before it signals."""
    assert list(run.path.glob("heeds-*")) == []
    with under_a_lease(run.environ()) as watching:
        assert [path.name for path in run.path.glob("heeds-*")] == ["heeds-0"]
        watching.end(finished=True, steps=0)


def test_a_handler_of_the_scripts_own_is_left_alone(run: RunDirectory) -> None:
    """A script that handles SIGTERM keeps its handler."""

    def own_handler(*_: object) -> None:
        pass

    signal.signal(signal.SIGTERM, own_handler)
    with under_a_lease(run.environ()) as watching:
        watching.begin(0, 0, None, None)
        assert signal.getsignal(signal.SIGTERM) is own_handler
        watching.end(finished=True, steps=0)
        assert signal.getsignal(signal.SIGTERM) is own_handler


FORKS = """
import os, signal
from gavel.training import session
watching = session.current()
child = os.fork()
if child == 0:
    plain = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    os._exit(7 if plain and session.current() is None else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert session.current() is watching
assert signal.getsignal(signal.SIGTERM) == watching._on_sigterm
print("child is plain")
"""


def test_a_forked_child_does_not_watch_the_lease(run: RunDirectory) -> None:
    """A data loader's worker dies of SIGTERM as usual, watches no lease, and closes no connection.

    The test forks in another process: a fork of this one, in which gRPC may be running, might hang.
    """
    environ = {**os.environ, **run.environ()}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "child is plain\n"), done.stderr


# Like a gloo thread, this one has something to put down when the script has ended.
ENDS_LATER = """
import threading, time
import torch.distributed
from gavel.training import session

assert session.current().run.world == 2

def put_down():
    threading.main_thread().join()
    open("put-down", "w").close()

thread = threading.Thread(target=put_down, daemon=True)
thread.start()

class Patient:
    # On a busy machine, a thread may get no turn in the time of a short sleep.
    monotonic = time.monotonic
    def sleep(s):
        assert s == session.REST_S
        thread.join(60)

session.time = Patient
"""


def test_threads_come_to_rest_before_a_rank_exits(run: RunDirectory) -> None:
    """A thread of PyTorch that is interrupted by the end of the interpreter aborts a job that has done its work."""
    pytest.importorskip("torch")
    environ = {**os.environ, **run.environ(world=2), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", ENDS_LATER], cwd=run.path, env=environ, check=True)
    assert (run.path / "put-down").exists()


def test_an_error_in_the_thread_does_not_cost_a_job_its_end(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread keeps watching after any error, and logs it once."""
    with under_a_lease(run.environ()) as watching:
        faults: list[float] = []

        def fail(now_s: float, steps: int) -> None:
            faults.append(now_s)
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr(watching.progress, "write_if_due", fail)
        eventually(lambda: len(faults) >= 3)
        run.write_lease(ask_in_s=0.0)
        eventually(lambda: watching.gate.stopping)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a fault" in caplog.text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_reaches_no_other_ends_alone_in_time(run: RunDirectory, rank: int) -> None:
    """Rank 0 without the others, and another rank without rank 0, end before the first signal, but not at once."""
    known = run_of(run.environ(rank, 2, GAVEL_COORDINATOR=f"127.0.0.1:{free_port()}"))
    assert known is not None
    # The thread is not started: the test calls its methods.
    alone = session.Session(known)
    run.write_lease(ask_in_s=0.0, signal_after_s=4.0)
    lease = alone._file.read()
    assert lease is not None
    stopping = []
    for after_s in (0.0, 1.9, 3.9):
        alone._tick(lease.ask_s + after_s)
        stopping.append(alone.gate.stopping)
    alone.close()
    assert stopping == [False, False, True]


def test_the_thread_brings_a_lonely_rank_to_its_end(run: RunDirectory) -> None:
    """In real time, the thread does the same as its ticks."""
    environ = run.environ(1, 2, GAVEL_COORDINATOR=f"127.0.0.1:{free_port()}")
    with under_a_lease(environ) as watching:
        run.write_lease(ask_in_s=0.0, signal_after_s=0.5, kill_after_s=60.0)
        eventually(lambda: watching.gate.stopping)


def test_an_end_that_comes_nearer_counts(run: RunDirectory) -> None:
    """A lease that is cut short while it is ending ends sooner: the rank does not wait for the kill."""
    with under_a_lease(run.environ(1, 2, GAVEL_COORDINATOR=f"127.0.0.1:{free_port()}")) as watching:
        run.write_lease(ask_in_s=0.0, signal_after_s=3000.0)
        eventually(lambda: watching._stop_alone_s is not None)
        run.write_lease(ask_in_s=-1.0, signal_after_s=1.2)
        eventually(lambda: watching.gate.stopping)


def test_the_end_is_sent_even_by_a_slow_thread(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished rank does not leave before the others have been notified, however long it takes to read the lease."""
    with under_a_lease(run.environ(1, 2, GAVEL_COORDINATOR=f"127.0.0.1:{free_port()}")) as watching:
        looking, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            looking.set()
            go_on.wait(60.0)

        monkeypatch.setattr(watching._file, "read", slow)
        assert looking.wait(60.0)
        threading.Timer(0.8, go_on.set).start()
        watching.end(finished=True, steps=3)
        assert watching._end_sent.is_set()
        assert "ended" in watching._link._to_repeat


def test_waiting_for_others_ends_before_the_kill(run: RunDirectory) -> None:
    """Waiting for others' parts ends a second before the kill; if no end is near, the wait's own limit holds."""
    with under_a_lease(run.environ()) as watching:
        assert watching.shortened_wait_s(60.0) == 60.0
        run.write_lease(ask_in_s=0.0, signal_after_s=200.0, kill_after_s=50.0)
        eventually(lambda: watching.shortened_wait_s(600.0) < 600.0)
        assert 150 < watching.shortened_wait_s(600.0) <= 249.0
        run.write_lease(ask_in_s=-100.0)
        eventually(lambda: watching.shortened_wait_s(60.0) == 1.0)


def test_a_missing_lease_file_is_logged(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run directory without a lease is no reason to stop; a log line warns that only SIGTERM will stop the job."""
    (run.path / "lease.json").unlink()
    monkeypatch.setattr(session, "AFTER_SIGNAL_S", 0.05)
    with under_a_lease(run.environ()) as watching:
        eventually(lambda: "there is no lease in" in caplog.text)
        assert watching.time_left_s() == float("inf")


def test_a_job_may_have_many_open_files(run: RunDirectory) -> None:
    """A job with more than a thousand open files, as data loaders have, is watched as any other."""
    resource: Any = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limit[1]), limit[1]))
    files = [open(sys.executable, "rb") for _ in range(1100)]  # noqa: SIM115
    try:
        with under_a_lease(run.environ()) as watching:
            assert watching._wake_from.fileno() > 1023
            run.write_lease(ask_in_s=0.0)
            eventually(lambda: watching.gate.stopping)
            assert not watching._failed
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_a_job_that_was_suspended_past_its_lease_saves_nothing(run: RunDirectory) -> None:
    """By now its GPUs may belong to another job, and a newer attempt may have saved, so it ends with an error.

    This protects any kind of checkpoint, even one without attempts.
    """
    saved: list[int] = []
    checkpoint = SimpleNamespace(load=lambda: 0, save=saved.append)
    with under_a_lease(run.environ()):
        steps = LeasedIterator(range(10), checkpoint=checkpoint, steps=10, every_steps=2)

        def train() -> None:
            for step in steps:
                if step == 5:
                    run.write_lease(ask_in_s=-60.0)

        with pytest.raises(StaleAttempt, match="with its lease"):
            train()
    assert saved == [2, 4]
    assert run.progress().get("state") in (None, "running")
