"""Real training scripts in processes of their own, under leases that end: no step is lost."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.training.leases import LONG_S, Process, RunDirectory, eventually, job_path

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
JOBS = Path(__file__).parent / "jobs"
SAMPLES = 61


class Job:
    """A job over its attempts: a working directory, a checkpoint directory, and processes."""

    def __init__(self, place: Path, script: str) -> None:
        self.place, self.script = place, JOBS / script
        self.runs: list[RunDirectory] = []
        self.processes: list[Process] = []
        self.others: list[Process] = []
        self.path = job_path(place)

    def without_gavel(self, steps: int, *how: str, world: int = 1) -> list[Process]:
        """Start the script outside Gavel, beside the attempts."""
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [{"RANK": str(rank), "WORLD_SIZE": str(world), **common} for rank in range(world)]
        place = self.place / "alone"
        place.mkdir()
        self.others = [self._start(rank, [str(steps), *how], place / f"{rank['RANK']}.txt") for rank in ranks]
        return self.others

    def attempt(
        self, steps: int, *how: str, world: int = 1, step_s: float = 0.01, **more: object
    ) -> list[Process]:
        """Start the next attempt, with each rank like on a separate node."""
        number = len(self.runs) + 1
        self.runs.append(RunDirectory(self.place / f"run-{number}", attempt=number))
        port, coordinator = free_port(), f"127.0.0.1:{free_port()}"
        self.processes = []
        for rank in range(world):
            environ = self.runs[-1].environ(
                rank,
                world,
                GAVEL_CHECKPOINT_DIR=self.place / "job",
                GAVEL_COORDINATOR=coordinator,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                STEP_S=step_s,
                **more,
            )
            output = self.place / f"attempt-{number}-{rank}.txt"
            self.processes.append(self._start(environ, [str(steps), *how], output))
        return self.processes

    def _start(self, environ: dict[str, str], arguments: list[str], output: Path) -> Process:
        return Process([str(self.script), *arguments], environ, output, self.path)

    @property
    def run(self) -> RunDirectory:
        """Return the newest attempt's run directory."""
        return self.runs[-1]

    def steps_of(self, rank: int = 0) -> list[list[int]]:
        """Return epoch and samples of each step of a rank, over all attempts."""
        try:
            lines = (self.place / f"samples-{rank}.txt").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [[int(word) for word in line.split()] for line in lines]

    def end_after(self, steps: int, signal_after_s: float = 20.0) -> list[int]:
        """Let the lease end after this many steps in all; return the exit codes."""
        eventually(lambda: len(self.steps_of()) >= steps)
        self.run.write_lease(ask_in_s=0.0, signal_after_s=signal_after_s)
        return [process.wait() for process in self.processes]


def not_run_yet(place: Path, script: str) -> Iterator[Job]:
    """Yield a job, and kill all its processes at the end."""
    new = Job(place, script)
    yield new
    for process in [*new.processes, *new.others]:
        process.kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that only counts, and starts at once."""
    yield from not_run_yet(tmp_path, "counting.py")


@pytest.fixture
def torch_job(tmp_path: Path) -> Iterator[Job]:
    """A job that trains a model."""
    yield from not_run_yet(tmp_path, "small_model.py")


def digests(processes: list[Process]) -> list[str]:
    """Return the digest that each rank printed at its end."""
    assert [process.wait() for process in processes] == [0] * len(processes), processes[0].text()
    lines = [line for process in processes for line in process.text().splitlines()]
    printed = [line.split()[1] for line in lines if line.startswith("digest")]
    assert len(printed) == len(processes)
    return printed


@needs_torch
@pytest.mark.parametrize(
    ("kind", "workers", "ends"),
    [("resumable", "0", (7, 30)), ("resumable", "2", (21,)), ("plain", "0", (21,))],
)
def test_an_interrupted_run_is_bitwise_the_uninterrupted_one(
    torch_job: Job, kind: str, workers: str, ends: tuple[int, ...]
) -> None:
    """A preempted and resumed job has the same parameters, moments and random numbers, and each sample once."""
    alone = torch_job.without_gavel(50, kind, workers)
    for after in ends:
        torch_job.attempt(50, kind, workers, HOLD_AT=after)
        assert torch_job.end_after(after) == [0]
        done = len(torch_job.steps_of())
        assert after <= done < 50
        words = torch_job.run.progress()
        assert (words["state"], words["steps"], words["saved"]) == ("yielded", done, done)
    assert torch_job.attempt(50, kind, workers)[0].wait() == 0
    assert torch_job.run.progress()["state"] == "finished"
    assert digests(torch_job.processes) == digests(alone)
    all_samples = list(range(SAMPLES))
    for epoch in range(50 // 16):
        samples_of_epoch = [
            sample for number, *samples in torch_job.steps_of() if number == epoch for sample in samples
        ]
        assert sorted(samples_of_epoch) == all_samples


@needs_torch
def test_two_ranks_stop_at_one_step_and_continue_bitwise(torch_job: Job) -> None:
    """Two ranks of DistributedDataParallel stop at the same step when one lease ends, and the results are the same."""
    alone = torch_job.without_gavel(24, world=2)
    torch_job.attempt(24, world=2, HOLD_AT=6)
    assert torch_job.end_after(6) == [0, 0]
    stopped = [torch_job.run.progress(rank) for rank in range(2)]
    assert stopped[0]["steps"] == stopped[1]["steps"] == stopped[0]["saved"] == stopped[1]["saved"] < 24
    assert [words["state"] for words in stopped] == ["yielded", "yielded"]
    torch_job.attempt(24, world=2)
    assert digests(torch_job.processes) == digests(alone)
    counts = Counter(
        sample
        for rank in range(2)
        for epoch, *samples in torch_job.steps_of(rank)
        if epoch == 0
        for sample in samples
    )
    assert set(counts) == set(range(SAMPLES))
    # With 61 samples over two ranks, one sample comes twice.
    assert sum(counts.values()) == SAMPLES + 1


def test_a_renewed_lease_does_not_stop_the_loop(job: Job) -> None:
    """A lease that is always about to end and always renewed in time changes nothing."""
    for ask_in_s in (4.0, 20.0, 60.0):
        # These steps take almost twice as long as the lease.
        steps = int(175 * ask_in_s)
        done = len(job.steps_of())
        job.attempt(done + steps, step_s=0.01)
        eventually(lambda done=done: len(job.steps_of()) > done)
        if renewed_in_time(job, ask_in_s):
            break
    assert job.processes[0].wait() == 0
    assert len(job.steps_of()) == done + steps
    assert job.run.progress()["state"] == "finished"


def renewed_in_time(job: Job, ask_in_s: float) -> bool:
    """Renew the job's lease until it has ended; return False when a renewal came too late."""
    until_s = time.monotonic() + LONG_S
    while job.processes[0].popen.poll() is None:
        job.run.write_lease(ask_in_s=ask_in_s)
        if (now_s := time.monotonic()) >= until_s:
            job.processes[0].wait()
            return False
        # The job may have read the lease a moment before.
        until_s = now_s + ask_in_s - 0.5
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("slower", [1, 7])
def test_ranks_that_are_not_in_lock_step_stop_at_one_step(job: Job, slower: int) -> None:
    """Ranks that never wait for each other, one of them much slower, still end at the same step."""
    for after in (5, 40):
        job.attempt(100_000, world=3, step_s=0.005, SLOWER=slower)
        assert job.end_after(after) == [0, 0, 0], [process.text() for process in job.processes]
        words = [job.run.progress(rank) for rank in range(3)]
        assert len({each["steps"] for each in words}) == 1
        assert [each["saved"] for each in words] == [words[0]["steps"]] * 3
        assert [each["state"] for each in words] == ["yielded"] * 3
        assert [len(job.steps_of(rank)) for rank in range(3)] == [words[0]["steps"]] * 3


def test_a_rank_that_has_finished_binds_the_others(job: Job) -> None:
    """If one rank has done all its steps when the lease ends, the slow one does all of its own; the job finishes."""
    job.attempt(40, world=2, step_s=0.001, SLOWER=100, HOLD_AT=5)
    eventually(lambda: len(job.steps_of(0)) == 40)
    assert len(job.steps_of(1)) < 40
    job.run.write_lease(ask_in_s=0.0, signal_after_s=60.0)
    assert [process.wait() for process in job.processes] == [0, 0], job.processes[0].text()
    assert [job.run.progress(rank)["state"] for rank in range(2)] == ["finished", "finished"]
    assert [job.run.progress(rank)["saved"] for rank in range(2)] == [40, 40]


def test_a_rank_that_is_gone_holds_up_no_other(job: Job) -> None:
    """When rank 0 has died, another ends by itself before its kill, with the steps saved before."""
    # It waits 5 s less than it may, so that a busy machine does not end it too late. Unshortened, it would be killed.
    job.attempt(100_000, world=2, SOONER_S=5)
    eventually(lambda: len(job.steps_of(1)) > 5)
    job.processes[0].kill()
    job.run.write_lease(ask_in_s=0.0, signal_after_s=2.0, kill_after_s=10.0)
    assert job.processes[1].wait() == 0
    words = job.run.progress(1)
    assert (words["state"], words["saved"]) == ("yielded", 0)
    assert "the part of rank 0" in job.processes[1].text()


def test_sigterm_is_a_lease_that_ends_now(job: Job) -> None:
    """The shim's signal at `signal_s` ends the script after a checkpoint, not before."""
    job.attempt(100_000)
    eventually(lambda: len(job.steps_of()) >= 5)
    job.processes[0].popen.send_signal(signal.SIGTERM)
    assert job.processes[0].wait() == 0
    words = job.run.progress()
    assert (words["state"], words["saved"]) == ("yielded", len(job.steps_of()))


def test_without_gavel_sigterm_ends_the_script_at_once(job: Job) -> None:
    """Outside Gavel the library leaves the signal alone."""
    process = job._start({"STEP_S": "0.01"}, ["100000"], job.place / "alone.txt")
    job.processes = [process]
    eventually(lambda: len(job.steps_of()) >= 3)
    process.popen.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_lease_file_that_vanishes_changes_nothing(job: Job) -> None:
    """Without the file the loop keeps to the lease that it read; when the file is back, it counts again."""
    job.attempt(100_000)
    eventually(lambda: len(job.steps_of()) >= 3)
    (job.run.path / "lease.json").unlink()
    before = len(job.steps_of())
    eventually(lambda: len(job.steps_of()) >= before + 20)
    assert job.end_after(0) == [0]
    assert job.run.progress()["state"] == "yielded"


def test_a_stale_attempt_cannot_save(job: Job) -> None:
    """An attempt that wakes after a newer one began ends with an error, and changes no checkpoint."""
    old = job.attempt(100_000)[0]
    eventually(lambda: len(job.steps_of()) >= 5)
    old.popen.send_signal(signal.SIGSTOP)
    old_run = job.run
    new = job.attempt(100_000)[0]
    eventually(lambda: "begins at 0" in new.text())
    old_run.write_lease(ask_in_s=0.0)
    old.popen.send_signal(signal.SIGCONT)
    assert old.wait() == 1
    assert "StaleAttempt: attempt e00000003-a00000002 " in old.text()
    assert old_run.progress()["state"] == "running"
    assert not list((job.place / "job").rglob("COMPLETE"))
    job.run.write_lease(ask_in_s=0.0)
    assert new.wait() == 0
    assert len(list((job.place / "job").rglob("COMPLETE"))) == 1
