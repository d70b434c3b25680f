"""A scheduler with a policy of its operator's: jobs run by it, and its failures cost nothing but its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavel.client import Invalid
from scheduler.core.facts import AllocationAdopted, AllocationFailed
from scheduler.journal.store import SqliteJournal
from tests.e2e.cluster import Cluster, eventually
from tests.support.policy_files import EVEN, NEVER, write


def facts(cluster: Cluster, kind: type) -> list[object]:
    """Return the facts of this kind in the scheduler's journal."""
    with SqliteJournal(cluster.folder / "scheduler" / "journal.db", read_only=True) as journal:
        return [fact for _, fact in journal.read() if isinstance(fact, kind)]


def test_the_life_of_a_policy_file(tmp_path: Path) -> None:
    """Set by name; never-ending answers leave the last good shares in force; a broken file does not stop a restart."""
    file = write(tmp_path / "mine.py", EVEN, NEVER)
    settings = (
        f'policy_files=["{file}"]',
        *("scheduler.policy=even", "scheduler.round_s=2", "solver_time_limit_s=0.5"),
    )
    with Cluster(tmp_path / "cluster", {"n1": "v100=2"}, settings) as cluster:
        first = cluster.submit("counting.py", tmp_path / "go", steps=5000)
        cluster.wait_until_running(first)
        eventually(lambda: "never" in cluster.client.policy().available, "the solver has loaded the file")
        eventually(lambda: cluster.client.allocation().shares, "the file's policy has shared out the GPUs")
        # It answers for one job, so it can be set; for two jobs, it never ends.
        cluster.client.set_policy("never")
        second = cluster.submit("counting.py", tmp_path / "go", steps=5000)
        eventually(
            lambda: any("did not end" in line for line in cluster.client.status().warnings),
            "the status says that the policy gives no answer",
        )
        cluster.wait_until_running(first)
        with pytest.raises(Invalid):
            cluster.client.set_policy("no_such_policy")
        cluster.stop_scheduler()
        # The last good shares stayed in force, or the new job got first come, first served: a fact says so.
        adopted = facts(cluster, AllocationAdopted)
        assert facts(cluster, AllocationFailed) or any(fact.failed for fact in adopted)  # type: ignore[attr-defined]
        write(tmp_path / "mine.py", "1 / 0\n")
        cluster.start_scheduler()
        eventually(
            lambda: any("mine.py, line" in line for line in cluster.client.status().warnings),
            "the status names the fault",
        )
        (tmp_path / "go").touch()
        for job in (first, second):
            cluster.wait_until_completed(job)
