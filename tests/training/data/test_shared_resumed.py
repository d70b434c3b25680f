"""`shared_prep` over several lives of a job: resumed among others that run, ended by a lease, started with new code."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.training.data.test_shared import BATCH, SAMPLES, Numbers
from tests.training.leases import ROOT, Process, RunDirectory, eventually, under_a_lease

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

from gavel.training import LeasedIterator, TorchCheckpoint, shared_prep  # noqa: E402
from gavel.training.data.staging import AHEAD  # noqa: E402

# Prints the samples of its batches. With a number of batches, it is killed after so many of them, when others have been
# prepared ahead; a second process of the same name continues there. The others wait for a file `go` before epoch 1.
JOB = """
import glob, json, os, random, signal, sys, time
from torch.utils.data import DataLoader
from gavel.training import shared_prep

name, stop, code = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

class Data:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        with open("prepared", "a") as file:
            # The number tells epochs apart.
            file.write(f"{index} {random.random()}\\n")
        return {"index": index, "code": code}

if __name__ == "__main__":
    loader = shared_prep(DataLoader(Data(), batch_size=4, shuffle=True), group="g", patience_s=120.0)
    state = f"{name}.json"
    first, done, is_resumed = 0, 0, os.path.exists(state)
    if is_resumed:
        with open(state) as file:
            loader.load_state_dict(json.load(file))
    batches = iter(loader)
    print("ready", flush=True)
    wait_for("start")
    for epoch in range(3):
        if epoch == 1 and not is_resumed:
            wait_for("go")
        for batch in batches if epoch == 0 else loader:
            for index, of_code in zip(batch["index"].tolist(), batch["code"]):
                print(epoch, index, of_code)
            sys.stdout.flush()
            done += 1
            if done == stop:
                with open(state, "w") as file:
                    json.dump(loader.state_dict(), file)
                while not glob.glob("staging/**/*.batch", recursive=True):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
"""


class Jobs:
    """Real jobs of a group on a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        (folder / "job.py").write_text(JOB)

    def start(self, name: str, *, stop: int = 0, code: str = "1", life: int = 1) -> Process:
        """Start a job; `stop`: after how many batches it is killed."""
        environ = {"GAVEL_CACHE": str(self.folder)}
        words = ["job.py", name, str(stop), code]
        self.processes.append(Process(words, environ, self.folder / f"{name}-{life}", str(ROOT)))
        return self.processes[-1]

    def rows(self, process: Process) -> list[tuple[str, str, str]]:
        """Return the epoch, the index and the code of each sample that a process has printed."""
        lines = [line.split() for line in process.text().splitlines() if line != "ready"]
        return [(epoch, index, code) for epoch, index, code in lines]


@pytest.fixture
def jobs(tmp_path: Path) -> Any:
    """A node without jobs, and none afterwards."""
    jobs = Jobs(tmp_path)
    yield jobs
    for process in jobs.processes:
        process.kill()


def test_a_job_resumed_within_an_epoch_while_others_run(jobs: Jobs) -> None:
    """Of three jobs one is killed and continued: all of them see each sample of each epoch once, in one order.

    The resumed one finishes its epoch alone. After that, batches are prepared once for all three again.
    """
    others = [jobs.start(name) for name in "ab"]
    killed = jobs.start("c", stop=5)
    eventually(lambda: all("ready" in process.text() for process in (*others, killed)))
    (jobs.folder / "start").touch()
    assert killed.wait() == -signal.SIGKILL
    resumed = jobs.start("c", life=2)
    eventually(lambda: "\n1 " in resumed.text())
    assert [process.popen.poll() for process in others] == [None, None]
    (jobs.folder / "go").touch()
    assert [process.wait() for process in (*others, resumed)] == [0, 0, 0]
    order = jobs.rows(others[0])
    assert Counter(order) == Counter((str(epoch), str(i), "1") for epoch in range(3) for i in range(100))
    assert jobs.rows(others[1]) == order
    assert len(jobs.rows(killed)) == 5 * 4
    assert jobs.rows(killed) + jobs.rows(resumed) == order
    prepared = Counter((jobs.folder / "prepared").read_text().splitlines())
    # What the resumed job prepared alone, what the killed one was preparing or had just prepared, and what was prepared
    # ahead beyond the last epoch.
    assert prepared.total() - 300 <= 80 + 2 * 4 + 3 * AHEAD * 4


def test_a_sweep_that_is_started_again_with_other_code(jobs: Jobs) -> None:
    """All jobs are killed, with batches prepared ahead; the next sweep of the same name receives none of them."""
    killed = [jobs.start(name, stop=3, code="old") for name in "ab"]
    eventually(lambda: all("ready" in process.text() for process in killed))
    (jobs.folder / "start").touch()
    (jobs.folder / "go").touch()
    assert [process.wait() for process in killed] == [-signal.SIGKILL] * 2
    assert list(jobs.folder.glob("staging/**/*.batch"))
    new = jobs.start("c", code="new")
    assert new.wait() == 0
    assert Counter(jobs.rows(new)) == Counter((str(e), str(i), "new") for e in range(3) for i in range(100))
    assert not list(jobs.folder.glob("staging/**/*.batch"))


def lease(folder: Path, number: int, end_after: int) -> tuple[list[tuple[int, int]], bool]:
    """Train under a lease that ends after so many steps, 0: never; return epoch and index of each sample."""
    run, samples = RunDirectory(folder / f"run-{number}", attempt=number), []
    with under_a_lease(run.environ()):
        loader = shared_prep(DataLoader(Numbers(), batch_size=BATCH, shuffle=True), group="g")
        checkpoint = TorchCheckpoint(str(folder / "checkpoints"), model=torch.nn.Linear(1, 1))
        steps = LeasedIterator(loader, checkpoint=checkpoint)
        for epoch in steps.epochs(3):
            for indices, *_ in steps:
                samples += [(epoch, int(index)) for index in indices]
                if end_after == steps.step + 1:
                    run.write_lease(ask_in_s=0.0)
                    eventually(lambda: steps._gate.limit <= steps.step + 1)
        loader.close()
    return samples, steps.finished


# The batches of an epoch.
BATCHES = -(-SAMPLES // BATCH)


@pytest.mark.parametrize("end_after", [BATCHES + 2, BATCHES, 2 * BATCHES], ids=["middle", "end", "later end"])
@pytest.mark.parametrize("has_cache", [False, True], ids=["alone", "member"])
def test_a_lease_ends_and_the_next_one_continues(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    end_after: int,
    has_cache: bool,
) -> None:
    """With `LeasedIterator`, both leases together see each sample of each epoch once, also if one ends with an epoch.

    The workers of the first lease end with it, and nothing is printed.
    """
    monkeypatch.delenv("GAVEL_CACHE", raising=False)
    if has_cache:
        monkeypatch.setenv("GAVEL_CACHE", str(tmp_path))
    first, is_finished = lease(tmp_path, 1, end_after)
    assert not is_finished
    assert len(first) == end_after // BATCHES * SAMPLES + end_after % BATCHES * BATCH
    second, is_finished = lease(tmp_path, 2, 0)
    assert is_finished
    expected = [(epoch, index) for epoch in range(3) for index in range(SAMPLES)]
    assert sorted(first + second) == expected
    assert capfd.readouterr().err == ""


class Collecting(Numbers):
    """Data whose preparation collects garbage, as any large allocation may."""

    def __getitem__(self, index: int) -> list[float]:
        gc.collect()
        return super().__getitem__(index)


def test_the_workers_of_a_member_end_when_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They do not wait for the garbage collector, which in a later worker could only print an error."""
    monkeypatch.setenv("GAVEL_CACHE", str(tmp_path))
    before = set(multiprocessing.active_children())
    gc.collect()
    gc.disable()
    try:
        loader = shared_prep(DataLoader(Collecting(), batch_size=BATCH, num_workers=2), group="g")
        batches = iter(loader)
        next(batches)
        assert len(set(multiprocessing.active_children()) - before) == 2
        batches.close()  # type: ignore[attr-defined]
        assert set(multiprocessing.active_children()) <= before
        assert len(list(loader)) == BATCHES - 1
    finally:
        gc.enable()
    assert "AssertionError" not in capfd.readouterr().err
