"""A short live run and its simulation: every step is done once, and the run can be simulated from its journal.

How close the two are depends on speed, and is measured by `python -m benchmarks.fidelity`.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import fidelity, live

GPUS = ("v100", "k80")


def test_jobs_of_a_live_run_do_their_exact_steps_and_are_simulated_by_its_journal(tmp_path: Path) -> None:
    """All jobs, preempted or not, do their steps; simulated at the measured rates, the same jobs all end, too."""
    jobs = fidelity.jobs(4, arrivals_s=1.0, scale=0.15)
    settings = fidelity.settings(round_s=3.0)
    assert fidelity.run_live(tmp_path, jobs, settings, GPUS) == []
    live_run = live.read_events(tmp_path)
    assert len(live_run.completed_s) == len(jobs)
    measured = fidelity.measure(live_run)
    assert set(measured.rates) <= set(live.rates(jobs))
    simulated = fidelity.simulate_again(live_run, measured, jobs, settings, GPUS)
    assert set(simulated.completed_s) == set(live_run.completed_s)
    for number, job in enumerate(jobs, 1):
        for world in (live_run, simulated):
            last = [
                turn
                for turn in world.turns.values()
                if turn.lease.job == str(number) and turn.exit is not None
            ][-1]
            assert last.exit is not None
            assert abs(last.exit.steps - job.steps) < 1e-6
            assert last.exit.outcome == "finished"
