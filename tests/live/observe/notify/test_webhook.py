"""One try to send a message, to a real HTTP server that answers well, badly or not at all."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.observe.notify import webhook as module
from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.messages import Message
from scheduler.live.observe.notify.webhook import SendFailed, Webhook
from tests.support.ports import free_port
from tests.support.receiver import Answer, Receiver
from tests.support.wording import Wording

MESSAGE = Message("0a", "job_failed", b'{"key": "0a"}')


def channel(url: str, **fields: Any) -> Channel:
    """Return a channel with this URL."""
    return Channel(name="ops", url=url, events=("job_failed",), **fields)


def failure(target: Channel) -> str:
    """Return why the message is not confirmed."""
    with pytest.raises(SendFailed) as failed:
        Webhook(target).send(MESSAGE)
    return str(failed.value)


def test_a_message_arrives_signed(tmp_path: Path) -> None:
    """The receiver gets the whole message, its key and event, and a signature that only the secret makes."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    with Receiver() as receiver:
        Webhook(channel(receiver.url, secret_file=str(secret))).send(MESSAGE)
        (request,) = receiver.requests
    assert (request.path, request.key, request.body) == ("/hook?key=a", "0a", MESSAGE.body)
    assert (request.headers["Gavel-Event"], request.headers["Content-Type"]) == (
        "job_failed",
        "application/json",
    )
    assert (request.is_signed(b"s3cret"), request.is_signed(b"other")) == (True, False)


@pytest.mark.parametrize(
    ("url", "address"), [("http://[::1]/a", ("::1", 80)), ("http://[::1]:8080/", ("::1", 8080))]
)
def test_an_ipv6_address_is_no_port(
    monkeypatch: pytest.MonkeyPatch, url: str, address: tuple[str, int]
) -> None:
    """The port of a URL is the one that it names, or that of its scheme."""
    addresses = []

    def refuse(address: tuple[str, int], *values: object) -> None:
        addresses.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    failure(channel(url))
    assert addresses == [address]


def test_without_a_secret_nothing_is_signed() -> None:
    """A channel without a secret sends no signature, rather than one with an empty secret."""
    with Receiver() as receiver:
        Webhook(channel(receiver.url)).send(MESSAGE)
        (request,) = receiver.requests
    assert not {"Gavel-Signature", "Gavel-Timestamp"} & set(request.headers)


@pytest.mark.parametrize("answer", [500, 404, 199, 999, "reset", "redirect", "garbage"])
def test_only_success_confirms_a_message(answer: Answer, wording: Wording) -> None:
    """Every other answer is a failure with its reason, and a redirect is not followed."""
    with Receiver() as receiver:
        receiver.answers.append(answer)
        wording(failure(channel(receiver.url)))
        assert len(receiver.requests) == 1


def test_an_answer_of_any_size_is_not_read() -> None:
    """Ten megabytes after a status of 200 confirm the message, and are not waited for."""
    with Receiver() as receiver:
        receiver.answers.append("huge")
        Webhook(channel(receiver.url)).send(MESSAGE)


def test_a_receiver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """A receiver that sends nothing is a failure, and so is one that sends a byte now and then."""
    monkeypatch.setattr(module, "SEND_S", 0.2)
    with Receiver() as receiver:
        receiver.answers += ["hang", "drip"]
        for _ in range(2):
            wording(failure(channel(receiver.url)))


def test_a_try_can_be_aborted() -> None:
    """Another thread ends a try at once, so that a stopping scheduler does not wait for a receiver."""
    with Receiver() as receiver:
        receiver.answers.append("hang")
        webhook = Webhook(channel(receiver.url))

        def abort() -> None:
            receiver.wait(1)
            webhook.abort()

        other = threading.Thread(target=abort)
        other.start()
        with pytest.raises(SendFailed):
            webhook.send(MESSAGE)
        other.join()


def test_no_try_begins_after_the_end() -> None:
    """A thread that was about to send when the scheduler stopped does not wait for a receiver that hangs."""
    with Receiver() as receiver:
        webhook = Webhook(channel(receiver.url))
        webhook.close()
        with pytest.raises(SendFailed, match="the scheduler stops"):
            webhook.send(MESSAGE)
        assert receiver.requests == []


def test_nobody_listens(wording: Wording) -> None:
    """A refused connection and a host that does not exist are failures with their reasons."""
    wording(failure(channel(f"http://127.0.0.1:{free_port()}/")))
    assert failure(channel("https://nowhere.invalid/"))


def test_a_certificate_is_verified() -> None:
    """A server without a certificate that this machine trusts receives nothing."""
    with Receiver() as receiver:
        assert failure(channel(receiver.url.replace("http:", "https:")))
        assert receiver.requests == []


def test_the_secret_is_read_for_each_message(tmp_path: Path) -> None:
    """A new secret counts from the next message on; without a readable one, nothing is sent."""
    secret = tmp_path / "secret"
    secret.write_text("one")
    secret.chmod(0o600)
    with Receiver() as receiver:
        webhook = Webhook(channel(receiver.url, secret_file=str(secret)))
        webhook.send(MESSAGE)
        secret.write_text("two")
        webhook.send(MESSAGE)
        secret.unlink()
        with pytest.raises(SendFailed):
            webhook.send(MESSAGE)
        first, second = receiver.requests
    assert (first.is_signed(b"one"), second.is_signed(b"two")) == (True, True)
