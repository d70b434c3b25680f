"""`shared_prep`: one order for all jobs of a group, each batch once, resumed where it was, whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.leases import ROOT, eventually

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

from gavel.training.data.shared import shared_prep  # noqa: E402

SAMPLES, BATCH = 22, 4


class Numbers:
    """Samples with random numbers, as augmentation draws them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> list[float]:
        return [float(index), random.random(), float(torch.rand(()))]


def loader(group: str = "g", **more: Any) -> Any:
    """Return a shared loader."""
    return shared_prep(DataLoader(Numbers(), batch_size=BATCH, shuffle=True, **more), group=group)


def rows(batches: Iterator[Any]) -> list[list[float]]:
    """Return the samples of batches."""
    return [list(map(float, row)) for batch in batches for row in zip(*batch, strict=True)]


@pytest.fixture(params=[False, True], ids=["alone", "member"])
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without a cache, and one with it."""
    monkeypatch.delenv("GAVEL_CACHE", raising=False)
    if request.param:
        monkeypatch.setenv("GAVEL_CACHE", str(tmp_path))


def test_the_order_and_the_random_numbers_are_those_of_the_group(node: None, monkeypatch: Any) -> None:
    """Whatever the seed of a job and wherever a batch is prepared, samples of an epoch are the same; epochs differ."""
    torch.manual_seed(1)
    with monkeypatch.context() as patched:
        patched.delenv("GAVEL_CACHE", raising=False)
        reference = loader(num_workers=2)
        epochs = [rows(iter(reference)) for _ in range(2)]
    torch.manual_seed(2)
    again = loader()
    before = torch.random.get_rng_state()
    assert [rows(iter(again)) for _ in range(2)] == epochs
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [sorted(row[0] for row in epoch) for epoch in epochs] == [list(range(SAMPLES))] * 2
    assert epochs[0] != epochs[1]
    assert rows(iter(loader("other"))) != epochs[0]


def test_a_loop_continues_in_the_middle_of_an_epoch(node: None) -> None:
    """The batches before a checkpoint and those after it are the batches of an uninterrupted loop."""
    whole = loader()
    epochs = [rows(iter(whole)) for _ in range(2)]
    whole.close()
    first = loader()
    batches = iter(first)
    before = rows(next(batches) for _ in range(3))
    state = first.state_dict()
    batches.close()
    second = loader()
    second.load_state_dict(state)
    assert before + rows(iter(second)) == epochs[0]
    assert rows(iter(second)) == epochs[1]


def test_a_pass_that_is_left_is_not_continued(node: None) -> None:
    """The next pass of a loop begins the next epoch."""
    whole = loader()
    epochs = [rows(iter(whole)) for _ in range(2)]
    whole.close()
    left = loader()
    left.set_epoch(0)
    next(iter(left))
    left.set_epoch(1)
    assert rows(iter(left)) == epochs[1]


def test_validation_keeps_its_order(node: None) -> None:
    """A loader that does not shuffle keeps the order of the data; drop_last leaves out the last samples."""
    plain = shared_prep(DataLoader(Numbers(), batch_size=BATCH, drop_last=True), group="g")
    assert len(plain) == SAMPLES // BATCH
    assert [row[0] for row in rows(iter(plain))] == list(range(SAMPLES // BATCH * BATCH))


class Failing(Numbers):
    """Data of which one sample cannot be prepared."""

    def __getitem__(self, index: int) -> list[float]:
        if index == 13:
            raise ValueError("sample 13 is broken")
        return super().__getitem__(index)


def test_an_error_of_the_preparation_reaches_the_loop(node: None) -> None:
    """The job fails as it does with the loader itself."""
    failing = shared_prep(DataLoader(Failing(), batch_size=BATCH, shuffle=True), group="g", patience_s=1.0)
    with pytest.raises(ValueError, match="sample 13 is broken"):
        rows(iter(failing))


def test_batches_that_cannot_be_passed_on_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what a batch may have."""
    monkeypatch.setenv("GAVEL_CACHE", str(tmp_path))
    odd = shared_prep(DataLoader(Numbers(), batch_size=BATCH, collate_fn=lambda rows: Numbers()), group="g")
    with pytest.raises(TypeError, match="batches may have tensors"):
        next(iter(odd))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"group": ""}, "group is ''"),
        ({"group": 7}, "group is 7"),
        ({"group": "g", "patience_s": 0}, "patience_s is 0"),
    ],
)
def test_bad_words_are_refused(words: dict[str, Any], text: str) -> None:
    """The message names the word and its value."""
    with pytest.raises(ValueError, match=text):
        shared_prep(DataLoader(Numbers(), batch_size=BATCH), **words)


def test_other_loaders_are_refused() -> None:
    """Batches and samples must have numbers."""
    with pytest.raises(TypeError, match="expected a DataLoader"):
        shared_prep([1, 2, 3], group="g")


def test_a_job_of_several_ranks_keeps_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks divide the samples among themselves."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    plain = DataLoader(Numbers(), batch_size=BATCH)
    assert shared_prep(plain, group="g") is plain


JOB = """
import os, sys
from torch.utils.data import DataLoader
from gavel.training.data.shared import shared_prep

class Data:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        with open("prepared", "a") as file:
            file.write(f"{index}\\n")
        return index

if __name__ == "__main__":
    loader = shared_prep(DataLoader(Data(), batch_size=4, shuffle=True), group="g", patience_s=2.0)
    for epoch in range(3):
        samples = []
        for batch in loader:
            samples += batch.tolist()
            print(epoch, len(samples), flush=True)
            # Only the test lets the first batch pass.
            if epoch == 0 and len(samples) == 4:
                sys.stdin.readline()
        assert sorted(samples) == list(range(400)), (epoch, len(samples))
    print("whole")
"""


def started(folder: Path, script: str, count: int) -> list[subprocess.Popen[str]]:
    """Start jobs of a group, each in a session of its own. Their outputs are the files out-0, out-1 and so on."""
    (folder / "job.py").write_text(script)
    environ = {
        "GAVEL_CACHE": str(folder),
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, "job.py"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=(folder / f"out-{number}").open("w"),
            text=True,
            start_new_session=True,
        )
        for number in range(count)
    ]


def test_jobs_that_are_killed_and_stopped_in_the_middle(tmp_path: Path) -> None:
    """Of four real jobs, one is killed and one suspended: the others have every sample once, and so has the latter."""
    jobs = started(tmp_path, JOB, 4)
    outputs = [tmp_path / f"out-{number}" for number in range(4)]

    def reached(number: int, epoch: int) -> bool:
        return f"\n{epoch} " in f"\n{outputs[number].read_text()}"

    try:
        eventually(lambda: all(reached(number, 0) for number in range(4)))
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
        eventually(lambda: reached(0, 1))
        jobs[0].send_signal(signal.SIGKILL)
        eventually(lambda: reached(1, 1))
        jobs[1].send_signal(signal.SIGSTOP)
        for number in (2, 3):
            assert jobs[number].wait() == 0
        jobs[1].send_signal(signal.SIGCONT)
        assert jobs[1].wait() == 0
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [output.read_text().endswith("whole\n") for output in outputs] == [False, True, True, True]
    prepared = Counter((tmp_path / "prepared").read_text().split())
    assert set(prepared) == {str(number) for number in range(400)}
    assert not list((tmp_path / "staging").glob("*/*/*.batch"))


COUNTED = """
import random, sys
from torch.utils.data import DataLoader
from gavel.training.data.shared import shared_prep

class Data:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        with open("prepared", "a") as file:
            # The number tells epochs apart.
            file.write(f"{index} {random.random()}\\n")
        return index

if __name__ == "__main__":
    loader = shared_prep(DataLoader(Data(), batch_size=4, shuffle=True), group="g")
    batches = iter(loader)
    print("ready", flush=True)
    sys.stdin.readline()
    for epoch in range(3):
        for batch in batches if epoch == 0 else loader:
            print(epoch, flush=True)
"""


def test_real_jobs_prepare_each_sample_once(tmp_path: Path) -> None:
    """Of three jobs, one is killed: only what its worker was preparing, or had just prepared, is prepared again."""
    jobs = started(tmp_path, COUNTED, 3)

    def repeated() -> Counter[str]:
        prepared = Counter((tmp_path / "prepared").read_text().splitlines(keepends=True))
        return Counter({line: times - 1 for line, times in prepared.items() if times > 1})

    def reached(number: int, text: str) -> bool:
        return text in (tmp_path / f"out-{number}").read_text().split()

    try:
        eventually(lambda: all(reached(number, "ready") for number in range(3)))
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
        eventually(lambda: all(reached(number, "1") for number in range(3)))
        assert repeated() == Counter()
        os.killpg(jobs[0].pid, signal.SIGKILL)
        assert [job.wait() for job in jobs[1:]] == [0, 0]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert repeated().total() <= 2 * 4
    assert set(repeated().values()) <= {1}
