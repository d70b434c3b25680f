"""`gavel update`: values are those of job files, each job has its own outcome, and wrong input names the option."""

import json

import pytest

from tests.cli.conftest import Gavel
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

JOB = ("submit", "--start", "1h", "--", "true")


def test_jobs_are_updated_by_id_name_and_array(live: LiveThread, gavel: Gavel) -> None:
    """Each changed job is named, and `show` has the new values."""
    gavel(*JOB)
    gavel("submit", "-n", "sweep", "--array", "0-1", "--start", "1h", "--", "true")
    result = gavel(
        "update", "1", "sweep", "--weight", "3", "--time-limit", "2h", "--retries", "2", "-t", "v100"
    )
    assert (result.exit_code, result.stdout) == (0, "updated job 1\nupdated jobs 2_0 and 2_1\n")
    specs = [live.daemon.world.state.jobs[name].spec for name in ("1", "2_0", "2_1")]
    assert {(spec.weight, spec.time_limit_s, spec.retries, spec.worker_types) for spec in specs} == {
        (3.0, 7200.0, 2, ("v100",))
    }
    answer = json.loads(gavel("update", "1", "--name", "other", "--json").stdout)
    assert answer == {"jobs": ["1"], "failed": []}
    assert gavel("show", "other").stdout.startswith("job 1 'other' ")


def test_limits_are_removed_and_ranges_replaced(live: LiveThread, gavel: Gavel) -> None:
    """`none` removes a limit; a number of GPUs replaces a range, too; a deadline counts from now."""
    gavel("submit", "--start", "1h", "-g", "1-2", "--time-limit", "1h", "--max-cost", "9", "--", "true")
    assert (
        gavel(
            "update", "1", "--time-limit", "none", "--max-cost", "none", "-g", "2", "--deadline", "3h"
        ).exit_code
        == 0
    )
    job = live.daemon.world.state.jobs["1"]
    assert (job.spec.time_limit_s, job.spec.max_cost) == (None, None)
    assert (job.spec.gpus, job.spec.gpus_min, job.spec.gpus_max) == (2, None, None)
    assert job.spec.deadline_s is not None
    assert 10_800 <= job.spec.deadline_s < 10_900


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 2),
        (("--weight", "heavy"), 2),
        (("--gpus", "none"), 2),
        (("--gpus", "64"), 2),
        (("--weight", "0"), 2),
        (("--time-limit", "-1h"), 2),
        (("-t", "h100"), 2),
    ],
)
def test_wrong_values_are_refused(
    live: LiveThread, gavel: Gavel, options: tuple[str, ...], code: int, wording: Wording
) -> None:
    """One line names the option or the field, and the job stays as it is."""
    gavel(*JOB)
    result = gavel("update", "1", *options)
    assert (result.exit_code, result.stdout, live.daemon.world.state.jobs["1"].updates) == (code, "", ())
    wording(result.stderr)


def test_one_failure_leaves_the_others_updated(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """An ended job and an unknown one are reported, and the exit code is that of the first failure."""
    gavel(*JOB)
    gavel(*JOB)
    gavel("cancel", "1")
    result = gavel("update", "1", "9", "2", "--weight", "2")
    assert (result.exit_code, result.stdout) == (6, "updated job 2\n")
    wording(result.stderr)
    failed = json.loads(gavel("update", "1", "--weight", "2", "--json").stdout)["failed"]
    assert [entry["job"] for entry in failed] == ["1"]
