"""The client when no scheduler answers, when it refuses, and when the connection is insecure or silent."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from gavel import AsyncClient, Client, JobSpec
from gavel.client import errors as e
from gavel.client.results import Role
from gavel.client.transport.notices import Trouble
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Role as LiveRole
from scheduler.live.access.tls import Keys
from tests.support.live import DEADLINE_S
from tests.support.live_thread import LiveThread, own_port
from tests.support.wording import Wording

RUN = JobSpec(command=("true",), steps=100.0)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that only this test uses."""
    with own_port() as port:
        yield port


@pytest.fixture
def address(port: int) -> str:
    """An address at which no server listens."""
    return f"127.0.0.1:{port}"


def test_no_scheduler_answers(address: str, wording: Wording) -> None:
    """After the time for retries, the client raises an error that names the address."""
    with Client(address, retry_s=0.3) as client:
        with pytest.raises(e.NotReachable, match=address) as raised:
            client.get("1")
        wording(raised.value, address=address)
        with pytest.raises(e.NotReachable):
            next(iter(client.watch()))


def test_a_caller_is_notified_of_waits(
    address: str, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Both clients report the address and how long they will keep trying."""
    reports: list[tuple[str, float]] = []
    # Only reports let time pass, and no call counts as silent.
    clock = SimpleNamespace(monotonic=lambda: 0.1 * len(reports), sleep=lambda _: None)
    monkeypatch.setattr("gavel.client.transport.channels.time", clock)
    monkeypatch.setattr("gavel.client.transport.channels.SILENT_S", 3600.0)

    def hear(error: e.GavelError | None, left_s: float) -> None:
        reports.append((str(error), round(left_s, 3)))

    async def ask() -> None:
        async with AsyncClient(address, retry_s=0.25, on_trouble=hear) as client:
            with pytest.raises(e.NotReachable, match=address):
                await client.status()

    with Client(address, retry_s=0.25, on_trouble=hear) as client, pytest.raises(e.NotReachable):
        client.status()
    first = len(reports)
    asyncio.run(ask())
    (message,) = {message for message, _ in reports}
    assert address in message
    wording(message, address=address)
    for waits_left_s in (
        [left_s for _, left_s in reports[:first]],
        [left_s for _, left_s in reports[first:]],
    ):
        assert waits_left_s == [0.25, 0.15, 0.05][: len(waits_left_s)]
        assert waits_left_s


def test_silence_is_reported_too(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """A network that swallows every packet gives no error for a long time, so the silence is reported."""
    # Silence is noticed long before the call reaches its limit.
    monkeypatch.setattr("gavel.client.transport.channels.SILENT_S", 0.0)
    reports: list[str] = []

    def hear(error: e.GavelError | None, left_s: float) -> None:
        reports.append(str(error))

    async def ask(address: str) -> None:
        async with AsyncClient(address, timeout_s=0.5, retry_s=0.0, on_trouble=hear) as client:
            with pytest.raises(e.NotReachable, match=address):
                await client.status()

    # The server accepts connections and never answers.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with (
            # The silence is noticed by a thread, which on a busy machine has to wait for its turn.
            Client(address, timeout_s=5.0, retry_s=0.0, on_trouble=hear) as client,
            pytest.raises(e.NotReachable) as raised,
        ):
            client.status()
        asyncio.run(ask(address))
    wording(raised.value, address=address)
    (message,) = set(reports)
    assert (len(reports), address in message) == (2, True)
    wording(message, address=address)


def test_a_watch_restarts_when_the_scheduler_is_back(tmp_path: Path, port: int) -> None:
    """A patient watch reports the trouble and its end, then yields the present jobs again and later changes."""
    reports: list[e.GavelError | None] = []
    with LiveThread(tmp_path, port=port) as live:
        journal = live.daemon.journal
        client = Client(live.address, on_trouble=lambda error, left_s: reports.append(error))
        (first,) = client.submit(RUN)
        events = client.watch(skip_present=True, patience_s=60.0)
        assert next(events).all_present
    with ThreadPoolExecutor(1) as pool, client:
        again = pool.submit(lambda: [next(events), next(events)])
        with LiveThread(tmp_path, journal=journal, port=port):
            present, end = again.result(DEADLINE_S)
        events.close()
    assert (present.job and present.job.id, present.present, end.all_present) == (first, True, True)
    assert isinstance(reports[0], e.NotReachable)
    assert reports[-1] is None


def test_a_scheduler_that_comes_back_is_waited_for(tmp_path: Path, port: int) -> None:
    """A submission that waits for the scheduler arrives when the scheduler is back, and only once."""
    with LiveThread(tmp_path, port=port) as live:
        journal = live.daemon.journal
        with Client(live.address, retry_s=DEADLINE_S) as client:
            (first,) = client.submit(RUN, key="k")
    with ThreadPoolExecutor(1) as pool, Client(f"127.0.0.1:{port}", retry_s=DEADLINE_S) as client:
        again = pool.submit(client.submit, RUN, "k")
        with LiveThread(tmp_path, journal=journal, port=port):
            assert again.result(DEADLINE_S) == (first,)
            assert [first] == [job.id for job in client.list()]


def test_unsafe_calls_are_not_repeated(live: LiveThread) -> None:
    """A change that the scheduler may have made is not sent again; reads are."""
    calls: list[str] = []

    class Flaky(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, go_on: Any, details: Any, request: Any) -> Any:
            calls.append(details.method)
            if len(calls) < 3:
                raise _Lost
            return go_on(details, request)

    class _Failed(grpc.RpcError):
        def code(self) -> Any:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "Socket closed"

        def trailing_metadata(self) -> tuple[Any, ...]:
            return ()

    _Lost = _Failed()
    with Client(live.address, retry_s=60.0) as client:
        channel = client._wire._channel
        client._wire._channel = grpc.intercept_channel(channel, Flaky())
        with pytest.raises(e.NotReachable):
            client.cancel("1")
        assert len(calls) == 1
        assert client.status().nodes == 1
        assert len(calls) == 3
        channel.close()


def test_too_much_at_once(tmp_path: Path) -> None:
    """A short rate limit is waited out; a long one is an error with the time to wait."""
    config = PeopleConfig(submissions_per_s=20.0, submissions_burst=2, jobs_unfinished_max=4)
    with LiveThread(tmp_path, config=config) as live, Client(live.address, retry_s=30.0) as client:
        for _ in range(4):
            client.submit(RUN)
        with pytest.raises(e.TooMany, match=r"\b5\b.*\b4\b") as raised:
            client.submit(RUN)
        assert raised.value.retry_s == 60.0


def test_without_a_token_or_with_too_small_a_role(tmp_path: Path, wording: Wording) -> None:
    """A missing token and a small role are different errors; a token is created, listed without secret, revoked."""
    with LiveThread(tmp_path, auth="tokens") as live:
        secret = live.daemon.people.access.create("root", LiveRole.ADMIN, 1000.0)[1]
        with Client(live.address) as anonymous, pytest.raises(e.NotAuthenticated):
            anonymous.status()
        with Client(live.address, token="wrong") as wrong, pytest.raises(e.NotAuthenticated):
            wrong.status()
        with Client(live.address, token=secret) as admin:
            created = admin.create_token("ada", Role.VIEWER, note="for reading")
            assert (created.token.user, created.token.role, created.token.note) == (
                "ada",
                Role.VIEWER,
                "for reading",
            )
            with Client(live.address, token=created.secret) as viewer:
                assert viewer.who_am_i().user == "ada"
                with pytest.raises(e.NotAllowed, match=r"\buser\b.*\bviewer\b") as raised:
                    viewer.submit(RUN)
                wording(raised.value)
            assert created.token.id in [token.id for token in admin.tokens()]
            assert admin.revoke_token(created.token.id).revoked
            with Client(live.address, token=created.secret) as revoked, pytest.raises(e.NotAuthenticated):
                revoked.status()


def test_no_scheduler_answers_the_asynchronous_client(address: str, wording: Wording) -> None:
    """The asynchronous client raises the same error."""

    async def run() -> e.NotReachable:
        async with AsyncClient(address, retry_s=0.1) as client:
            with pytest.raises(e.NotReachable) as raised:
                await client.status()
        return raised.value

    wording(asyncio.run(run()), address=address)


def test_over_tls(tmp_path: Path) -> None:
    """With the scheduler's CA the client can connect; with another CA, or without one, NotReachable is raised."""
    keys, others = Keys(tmp_path / "tls"), Keys(tmp_path / "others")
    keys.make(["localhost", "127.0.0.1"])
    others.make(["localhost", "127.0.0.1"])
    (tmp_path / "ca.pem").write_bytes(keys.ca_pem)
    (tmp_path / "other.pem").write_bytes(others.ca_pem)
    (tmp_path / "no.pem").write_text("not a certificate")
    credentials = grpc.ssl_server_credentials([keys.server()])
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon", auth="tokens", credentials=credentials) as live:
        assert live.daemon.people.access is not None
        secret = live.daemon.people.access.create("ada", LiveRole.USER, 1000.0)[1]
        for address in (live.address, live.address.replace("127.0.0.1", "localhost")):
            with Client(address, token=secret, ca=str(tmp_path / "ca.pem")) as client:
                assert client.who_am_i().user == "ada"
        for ca in ("other.pem", "no.pem"):
            with (
                Client(live.address, token=secret, ca=str(tmp_path / ca), retry_s=0.0) as client,
                pytest.raises(e.NotReachable) as raised,
            ):
                client.status()
            assert raised.value.reason in (e.TLS, "unreachable")
        with Client(live.address, token=secret, retry_s=0.0) as client, pytest.raises(e.NotReachable):
            client.status()


def test_silence_noticed_with_the_answer_is_not_reported() -> None:
    """The timer may fire while the answer arrives; a report at that moment would never be followed by its end."""
    reports: list[object] = []
    trouble = Trouble(lambda error, left_s: reports.append(error), "127.0.0.1:1")
    trouble.resolve()
    trouble.report_silence(10.0)
    assert reports == []
