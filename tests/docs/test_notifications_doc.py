"""docs/notifications.md: its settings, events and example message are those of the scheduler; its Python verifies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scheduler.core import facts as f
from scheduler.core.apply import apply
from scheduler.core.state import SchedulerState
from scheduler.live.config import daemon_config
from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.events import EVENTS, Rules
from scheduler.live.observe.notify.messages import Message, compose
from scheduler.live.observe.notify.webhook import Webhook
from scheduler.model.jobs import JobSpec, Move
from tests.support.receiver import Receiver

PAGE = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the block of code in this language."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


def rows(head: str) -> dict[str, str]:
    """Return the table whose first column has this head."""
    (table,) = re.findall(rf"\| {head} \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE)
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", table, re.MULTILINE))


def test_the_settings(tmp_path: Path) -> None:
    """The example is valid, and the table has every setting of a channel."""
    path = tmp_path / "gavel.toml"
    path.write_text(block("toml"))
    (channel,) = daemon_config(str(path), {}, variables={}).notify
    assert channel.name == "oncall"
    assert set(rows("setting")) == set(Channel.__struct_fields__)


def test_the_events() -> None:
    """The table has every event and its meaning."""
    assert rows("event") == {name: event.meaning for name, event in EVENTS.items()}


def test_the_message() -> None:
    """The example has the fields of a message about a job."""
    state, spec = SchedulerState(), JobSpec(name="train", user="ann", tenant="vision", job_type="resnet50")
    record = [
        f.JobSubmitted(job="12", spec=spec),
        f.JobMoved(job="12", move=Move.FAIL, why="it exited with code 1"),
    ]
    for fact in record:
        apply(state, 1_795_435_200.0, fact)
    (happening,) = Rules(state).take(1_795_435_200.0, record)
    example = json.loads(block("json"))
    sent = json.loads(
        compose("oncall", example["key"], "job_failed", [json.dumps(happening.details)], 0).body
    )
    varying = {"attempts", "last_exit_code", "run_s"}
    assert set(sent["events"][0]["job"]) == set(example["events"][0]["job"])
    for message in (sent, example):
        message["events"][0]["job"] = without(message["events"][0]["job"], varying)
    assert sent == example


def without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the values without these."""
    return {name: value for name, value in values.items() if name not in names}


def test_the_python(tmp_path: Path) -> None:
    """It accepts what the scheduler sends, and refuses another secret, another body and an old message."""
    names: dict[str, Any] = {}
    exec(compile(block("python"), "notifications.md", "exec"), names)
    is_genuine = names["is_genuine"]
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    with Receiver() as receiver:
        Webhook(Channel(name="ops", url=receiver.url, events=(), secret_file=str(secret))).send(
            Message("0a", "test", b"{}")
        )
        (request,) = receiver.requests
    assert is_genuine(request.headers, request.body, b"s3cret")
    assert not is_genuine(request.headers, request.body, b"other")
    assert not is_genuine(request.headers, b"[]", b"s3cret")
    old = request.headers | {"Gavel-Timestamp": str(int(request.headers["Gavel-Timestamp"]) - 301)}
    assert not is_genuine(old, request.body, b"s3cret")
