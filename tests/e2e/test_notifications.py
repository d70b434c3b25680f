"""From a job file to a webhook: `gavel submit`, a scheduler, an agent, and a server that receives the message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.support.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """The webhook."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def cluster(tmp_path: Path, receiver: Receiver) -> Iterator[Cluster]:
    """A node with one GPU, and a channel for jobs and lost nodes."""
    channel = f'{{name = "ops", url = "{receiver.url}", events = ["node_lost"], for_jobs = true}}'
    limits = ("scheduler.round_s=600", "scheduler.lease_margin_s=8", "agents.silence_s=5")
    impatient = ("--ask-s", "4", "--grace-s", "1.5")
    settings = (*limits, f"notify=[{channel}]")
    with Cluster(tmp_path / "cluster", {"n1": "v100=1"}, settings, *impatient) as cluster:
        yield cluster


def test_a_job_file_notifies_a_webhook(cluster: Cluster, receiver: Receiver, tmp_path: Path) -> None:
    """The failure of a job arrives with its exit code; its success was not asked for; the loss of its node arrives."""
    file = tmp_path / "train.yaml"
    file.write_text("name: train\nscript: exit 3\nnotify: {on: [failed], to: ops}\n")
    cluster.answer("submit", str(file))
    cluster.answer("submit", "--notify", "ops:failed", "--", "true")
    cluster.answer("submit", "--notify", "ops:completed", "--name", "last", "--", "true")
    (event,) = events(receiver, "job_failed")
    assert (event["job"]["id"], event["job"]["name"], event["job"]["last_exit_code"]) == ("1", "train", 3)
    assert [event["job"]["id"] for event in events(receiver, "job_completed")] == ["3"]
    assert "ops:failed" in cluster.answer("show", "1")
    cluster.kill("n1")
    assert events(receiver, "node_lost")[0]["node"] == "n1"


def events(receiver: Receiver, name: str) -> list[Any]:
    """Wait for a message about this event, and return the events of all such messages."""
    requests = receiver.wait_for(lambda requests: any(entry.message["event"] == name for entry in requests))
    messages = [entry.message for entry in requests if entry.message["event"] == name]
    return [event for message in messages for event in message["events"]]
