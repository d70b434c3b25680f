"""Which runs are idle: by their steps, the use of their GPUs, and the processor time of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from gavel.training import progress as training_progress
from worker_agent.runs.activity import Idleness, Observation
from worker_agent.runs.outcome import NO_PROGRESS, Progress
from worker_agent.shim import process_tree
from worker_agent.shim.process_tree import processor_times

PERIOD_S = 10.0
# As the scheduler's default.
IDLE_AFTER_S = 1800.0
STEPPED = Progress(1, 1, steps=5.0, stepping_s=50.0)
NOTHING = Progress(1, 1)


def idle_s(*observations: Observation) -> float:
    """Return how long a run has been idle after these observations, one in each period."""
    idleness, answer = Idleness(), dict[str, float]()
    for number, observation in enumerate(observations):
        answer = idleness.observe(number * PERIOD_S, [observation])
    return answer.get("1", 0.0)


def run(
    progress: Progress = NOTHING, gpu_use: tuple[float, ...] | None = None, processor_s: float | None = 0.0
) -> Observation:
    """Return an observation of run 1."""
    return Observation("1", progress, gpu_use, processor_s)


def test_a_run_that_does_nothing_is_idle() -> None:
    """Since it was last active: on declared GPUs without processor time, on others without use of any GPU."""
    assert idle_s(run(), run()) == PERIOD_S
    assert idle_s(run(), run(), run()) == 2 * PERIOD_S
    assert idle_s(*[run(STEPPED, gpu_use=(0.0, 0.04))] * 4) == 3 * PERIOD_S
    assert idle_s(run(), run(processor_s=5.0), run(processor_s=5.1)) == PERIOD_S
    # It steps no more, and only its processor is in use.
    assert idle_s(run(), *[run(STEPPED, (0.0,), 10.0 * n) for n in range(4)]) == 3 * PERIOD_S


def test_a_step_that_never_ends_is_no_activity(tmp_path: Path) -> None:
    """The training library goes on writing its progress file, in which only the time since the first step grows."""
    library = training_progress.Progress(tmp_path, 0, 1, 1)
    library.begin(0)
    library.step_begins()
    began_s, observations = time.monotonic(), []
    for number, steps in enumerate((0, 5, 5, 5, 5)):
        library.write(began_s + number * PERIOD_S, steps)
        progress = msgspec.json.decode((tmp_path / "progress-0.json").read_bytes(), type=Progress)
        observations.append(run(progress, gpu_use=(0.0,), processor_s=number * PERIOD_S))
    assert observations[3].progress.stepping_s < observations[4].progress.stepping_s
    assert idle_s(*observations) == 3 * PERIOD_S


def test_the_first_step_is_a_start_up() -> None:
    """A run whose first step compiles for long is active by its processor, also if it continues from a checkpoint."""
    compiles = [
        run(NO_PROGRESS),
        *[run(Progress(1, 1, steps=7.0, stepping_s=PERIOD_S * n)) for n in range(1, 4)],
    ]
    busy = [entry._replace(gpu_use=(0.0,), processor_s=n * PERIOD_S) for n, entry in enumerate(compiles)]
    assert idle_s(*busy) == 0.0


@pytest.mark.parametrize(
    "last",
    [
        run(STEPPED),
        run(Progress(1, 1, saving=True)),
        run(gpu_use=(0.0, 0.05)),
        run(processor_s=1.0),
        # A start-up: no step yet.
        run(gpu_use=(0.0,), processor_s=1.0),
        # Processes have ended, or cannot be observed.
        run(processor_s=-1.0),
        run(processor_s=None),
    ],
)
def test_a_run_is_active_again(last: Observation) -> None:
    """By a step, a checkpoint, a GPU in use, or processor time where that counts."""
    assert idle_s(run(), run(), last) == 0.0


def test_a_new_run_begins_active() -> None:
    """A run counts from its first observation, and one that has ended is forgotten."""
    idleness = Idleness()
    idleness.observe(0.0, [run()])
    assert idleness.observe(10.0, [run(), run()._replace(lease="2")]) == {"1": 10.0}
    assert idleness.observe(20.0, [run()._replace(lease="2")]) == {"2": 10.0}
    assert idleness.observe(30.0, [run()]) == {}


def good_job(luck: Random, *, is_declared: bool) -> Iterator[Observation]:
    """Yield the observations of a training job: start-up, steps of any length, checkpoints, waits for other ranks."""
    steps = stepping_s = processor_s = 0.0

    def observed(use: float, works: float, *, saving: bool = False) -> Observation:
        nonlocal processor_s
        processor_s += works * PERIOD_S
        progress = Progress(1, 1, steps=steps, stepping_s=stepping_s, saving=saving)
        return run(progress, None if is_declared else (use,), processor_s)

    for _ in range(luck.randrange(400)):
        yield observed(0.0, luck.choice((0.5, 1.0, 7.5)))
    for _ in range(luck.randrange(3, 30)):
        # A step of up to 20 minutes, in which the GPU is in use now and then.
        for _ in range(luck.randrange(1, 120)):
            yield observed(luck.choice((0.0, 0.3, 1.0)), luck.choice((0.0, 0.2, 1.0)))
        steps, stepping_s = steps + 1, stepping_s + 100.0
        if luck.random() < 0.3:
            # A checkpoint to slow storage.
            for _ in range(luck.randrange(300)):
                yield observed(0.0, 0.0, saving=True)


@pytest.mark.parametrize("seed", range(40))
def test_good_jobs_give_no_false_alarm(seed: int) -> None:
    """On declared and on real GPUs."""
    idleness = Idleness()
    for number, observation in enumerate(good_job(Random(seed), is_declared=seed % 2 == 0)):
        answer = idleness.observe(number * PERIOD_S, [observation])
        assert answer.get("1", 0.0) < IDLE_AFTER_S


def test_processor_time_counts_descendants_and_children_that_ended() -> None:
    """Of every process below a root; a root that is gone has none."""
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(3_000_000))']);"
        "print('done', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        times = processor_times([os.getpid(), 2**22 + 1])
        process.stdin.close()
    assert times[os.getpid()] > 0
    assert list(times) == [os.getpid()]


def test_processor_time_survives_pids_that_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that seem to be parents of each other belong to nobody, and end no loop late."""
    parents = {10: 1, 11: 10, 20: 21, 21: 20}
    monkeypatch.setattr(process_tree, "_pids", lambda: iter(parents))
    fields = {pid: [b"S", b"%d" % parent, *[b"100"] * 20] for pid, parent in parents.items()}
    monkeypatch.setattr(process_tree, "_stat_fields", fields.get)
    assert processor_times([10]) == {10: 400 / os.sysconf("SC_CLK_TCK")}
