"""Lightning's Trainer under a lease: it ends in time, continues in mid-epoch, and gets every sample once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from gavel.training import StaleAttempt
from tests.support.wording import Wording
from tests.training.leases import RunDirectory, eventually, under_a_lease
from tests.training.virtual_lease import VirtualLease, virtual_lease

MISSING = [name for name in ("torch", "lightning") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.filterwarnings("ignore::Warning"),
]


def test_a_trainer_ends_with_its_lease_and_continues(tmp_path: Path) -> None:
    """A Trainer that is asked to end in mid-epoch saves and stops, even before its least number of epochs.

    The next attempt continues with the remaining samples, and ends with the parameters of an uninterrupted run.
    """
    import torch

    from tests.training import tiny_lightning as tiny

    alone = tiny.Model()
    tiny.fit(tmp_path / "alone", alone, max_steps=13, max_epochs=-1)
    environ = {"GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}
    first = RunDirectory(tmp_path / "run-1", attempt=1)
    with under_a_lease({**first.environ(), **environ}) as session:

        def end() -> None:
            first.write_lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 7)

        interrupted = tiny.Model(7, end)
        trainer, lease = tiny.fit(tmp_path, interrupted, max_steps=13, max_epochs=-1, min_epochs=2)
        assert (lease.resume_from, trainer.global_step) == (None, 7)
        words = first.progress()
        assert (words["state"], words["steps"], words["saved"]) == ("yielded", 7, 7)
    second = RunDirectory(tmp_path / "run-2", attempt=2)
    with under_a_lease({**second.environ(), **environ}):
        ended = tiny.Model()
        trainer, lease = tiny.fit(tmp_path, ended, max_steps=13, max_epochs=-1)
        assert lease.resume_from is not None
        assert lease.resume_from.endswith("e00000003-a00000001/step-000000000007.ckpt")
        assert second.progress()["state"] == "finished"
    assert trainer.global_step == 13
    assert interrupted.samples + ended.samples == alone.samples
    assert all(map(torch.equal, ended.parameters(), alone.parameters()))


def test_the_trainer_saves_in_between_and_keeps_two(tmp_path: Path) -> None:
    """The Trainer saves periodic checkpoints, of which the newest two stay."""
    import lightning
    import torch

    from gavel.training.lightning import LeaseCallback
    from tests.training import tiny_lightning as tiny

    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}):
        lightning.seed_everything(5)
        lease = LeaseCallback(tmp_path / "out", every_steps=2)
        trainer = lightning.Trainer(
            callbacks=[lease],
            max_steps=7,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(tiny.Model(), torch.utils.data.DataLoader(list(range(20)), batch_size=4))
        place = tmp_path / "job" / "e00000003-a00000001"
        assert sorted(path.name for path in place.iterdir()) == [
            "step-000000000006.ckpt",
            "step-000000000006.ckpt.complete",
            "step-000000000007.ckpt",
            "step-000000000007.ckpt.complete",
        ]


def test_outside_gavel_the_trainer_is_unchanged(tmp_path: Path) -> None:
    """The Trainer trains to its end, and resumes nothing."""
    from tests.training import tiny_lightning as tiny

    trainer, lease = tiny.fit(tmp_path, tiny.Model(), max_steps=3)
    assert (trainer.global_step, lease.resume_from) == (3, None)


def test_a_stale_trainer_saves_nothing(tmp_path: Path, wording: Wording) -> None:
    """A Trainer whose job has continued elsewhere ends with an error before it writes."""
    from tests.training import tiny_lightning as tiny

    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}) as session:

        def taken_over() -> None:
            (tmp_path / "job" / "claims" / "e00000003-a00000002.json").write_text("{}")
            run.write_lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 3)

        with pytest.raises(StaleAttempt, match="attempt e00000003-a00000002 ") as stale:
            tiny.fit(tmp_path, tiny.Model(3, taken_over), max_steps=13)
    wording(stale.value, folder=tmp_path)
    assert not list((tmp_path / "job").rglob("*.ckpt"))


def test_a_checkpoint_is_measured_while_the_trainer_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing counts as a checkpoint, and not as stepping."""
    from tests.training import tiny_lightning as tiny

    with virtual_lease(RunDirectory(tmp_path / "run"), monkeypatch) as lease:
        lease.step_s, lease.save_s = 0.02, 0.5

        def step() -> None:
            lease.session.progress.write(lease.clock.now_s, lease.session.gate.done)
            lease.step()

        tiny.fit(tmp_path, tiny.Observed(step, lease.write), lease_words={"every_steps": 2}, max_steps=8)
        measured = lease.measured(8)
    assert lease.saves == [2, 4, 6, 8]
    assert measured["final_save_s"] == measured["stall_s"] == 0.5
    assert measured["step_s"] == pytest.approx(0.02)


def fit_automatically(place: Path, lease: VirtualLease, end_at: int | None = None) -> list[int]:
    """Train up to step 60, or until the lease ends; return the steps that were saved."""
    from tests.training import tiny_lightning as tiny

    if end_at is not None:
        lease.session.gate.decide(end_at, stop=True)
    words = {"every": "auto", "overhead": 0.05}
    model = tiny.Observed(lease.step, lease.write)
    tiny.fit(place, model, lease_words=words, max_steps=60, max_epochs=-1)
    return lease.saves


def test_the_next_lease_keeps_the_tuned_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first lease has a profile, and one on other GPUs: the second one saves at the tuned interval at once."""
    more = {"GAVEL_CHECKPOINT_DIR": tmp_path / "job", "GAVEL_WORKER_TYPE": "v100"}
    with virtual_lease(RunDirectory(tmp_path / "run-1", attempt=1), monkeypatch, **more) as lease:
        assert fit_automatically(tmp_path, lease, end_at=36) == [25, 33, 36]
        assert lease.run.progress()["measured"]["interval"] == 8
    with virtual_lease(RunDirectory(tmp_path / "run-2", attempt=2), monkeypatch, **more) as lease:
        assert fit_automatically(tmp_path, lease, end_at=46) == [44, 46]
    more["GAVEL_WORKER_TYPE"] = "p100"
    with virtual_lease(RunDirectory(tmp_path / "run-3", attempt=3), monkeypatch, **more) as lease:
        assert fit_automatically(tmp_path, lease) == [60]
        assert lease.run.progress()["state"] == "finished"


def test_the_interval_is_a_part_of_the_callbacks_state(tmp_path: Path) -> None:
    """A callback that tunes stores its interval and takes it back; checkpoints without one are loaded, too."""
    from gavel.training.lightning import LeaseCallback

    tuned = LeaseCallback(tmp_path / "out", every="auto")
    assert tuned._tuner is not None
    machine = tuned.state_dict()["interval"]["machine"]
    interval = {"machine": machine, "interval": 8, "times": [0.5, 0.2, 0.2]}
    tuned.load_state_dict({**tuned.state_dict(), "interval": interval})
    assert (tuned._tuner.interval, tuned.state_dict()["interval"]) == (8, interval)
    without = LeaseCallback(tmp_path / "out").state_dict()
    assert without["interval"] is None
    fresh = LeaseCallback(tmp_path / "out", every="auto")
    assert fresh._tuner is not None
    fresh.load_state_dict(without)
    fresh.load_state_dict({name: value for name, value in without.items() if name != "interval"})
    assert fresh._tuner.interval is None
