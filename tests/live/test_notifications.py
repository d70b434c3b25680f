"""Notifications of a daemon that is killed between a fact and its message: nothing is lost, doubles have one key."""

from __future__ import annotations

from pathlib import Path

from protos.gavel.v1 import jobs_pb2
from tests.live.test_serve import USER, Process, calling, submit
from tests.support.receiver import Receiver

Command = jobs_pb2.CommandJobRequest


def command(daemon: Process, name: str, action: Command.Action) -> str:
    """Submit a job and command it, both acknowledged; return its id."""
    with calling(daemon.address()) as jobs:
        (job,) = submit(jobs, name)
        jobs.CommandJob(Command(job=job, action=action), metadata=USER, timeout=20)
        return job


def test_kill_9_loses_no_event(tmp_path: Path) -> None:
    """The daemon is killed while a receiver hangs, and right after an acknowledged event.

    The next daemon sends both. The message that had no answer has the same key and body again.
    """
    secret, settings = tmp_path / "secret", tmp_path / "gavel.toml"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    with Receiver() as receiver:
        settings.write_text(
            f'[[notify]]\nname = "ops"\nurl = "{receiver.url}"\nsecret_file = "{secret}"\n'
            'events = ["job_cancelled", "job_held"]\n'
        )
        # A slow start takes several tries, and none may be confirmed before the last daemon.
        receiver.answers += ["hang"] * 10
        daemon = Process(tmp_path / "data", "--config", str(settings))
        cancelled = command(daemon, "first", Command.ACTION_CANCEL)
        receiver.wait(1)
        daemon.kill()
        daemon = Process(tmp_path / "data", "--config", str(settings))
        held = command(daemon, "second", Command.ACTION_HOLD)
        daemon.kill()
        receiver.answers.clear()
        daemon = Process(tmp_path / "data", "--config", str(settings))
        requests = receiver.wait_for(lambda requests: requests[-1].message["event"] == "job_held")
        daemon.kill()
    assert all(request.is_signed(b"s3cret") for request in requests)
    *repeated, last = requests
    assert len(repeated) >= 2
    assert len({(request.key, request.body) for request in repeated}) == 1
    jobs = [[entry["job"]["id"] for entry in request.message["events"]] for request in (repeated[0], last)]
    assert jobs == [[cancelled], [held]]
