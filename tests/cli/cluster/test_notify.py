"""`gavel notify`: channels without secrets, and tests of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client.results import Channel
from scheduler.live.observe.notify.channels import Channel as ChannelSettings
from tests.cli.conftest import Gavel, keys
from tests.support.live_thread import LiveThread
from tests.support.ports import free_port
from tests.support.receiver import Receiver
from tests.support.wording import Wording


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_settings: None) -> Iterator[Receiver]:
    """The webhook of the channel `ops`; that of `dead` does not exist."""
    with Receiver() as receiver:
        channels = [
            ChannelSettings(name="ops", url=receiver.url, events=("node_lost", "job_held"), for_jobs=True),
            ChannelSettings(
                name="dead", url=f"http://127.0.0.1:{free_port()}/secret", events=("job_failed",)
            ),
        ]
        (tmp_path / "daemon").mkdir()
        with LiveThread(tmp_path / "daemon", channels=channels) as live:
            monkeypatch.setenv("GAVEL_ADDRESS", live.address)
            yield receiver


def test_channels_are_tested_and_listed(gavel: Gavel, receiver: Receiver, wording: Wording) -> None:
    """A test that the receiver confirms succeeds; another one fails with the reason; the list has both, no secret."""
    for channel, code in (("ops", 0), ("dead", 1)):
        tested = gavel("notify", "test", channel)
        assert tested.exit_code == code
        wording(tested.stderr)
    (request,) = receiver.requests
    assert (request.message["event"], request.message["to"]) == ("test", "ops")
    ops, dead = json.loads(gavel("notify", "list", "--json").stdout)
    assert set(ops) == keys(Channel)
    assert (ops["error"], dead["succeeded"], dead["error"]) == ("", None, "connection refused")
    assert ops["succeeded"] is not None
    table = gavel("notify", "list")
    assert table.exit_code == 0
    assert "secret" not in table.stdout
    rows = [line.split()[:4] for line in table.stdout.splitlines()]
    assert rows[1:] == [["ops", "yes", ops["url"], "0"], ["dead", "no", dead["url"], "0"]]


def test_a_test_in_json(gavel: Gavel, receiver: Receiver) -> None:
    """The result is JSON, with the reason of a failure."""
    receiver.answers.append(404)
    tested = gavel("notify", "test", "ops", "--json")
    assert (tested.exit_code, json.loads(tested.stdout)) == (
        1,
        {"channel": "ops", "error": "it answered 404 (Not Found)"},
    )


def test_an_unknown_channel(gavel: Gavel, receiver: Receiver, wording: Wording) -> None:
    """The error names the nearest channel."""
    tested = gavel("notify", "test", "opps")
    assert tested.exit_code != 0
    wording(tested.stderr)
