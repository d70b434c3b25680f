"""The client when nobody answers, when somebody says no, and when the connection is not what it should be."""

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
from scheduler.live.access.limits import PeopleConfig
from scheduler.live.access.roles import Role as LiveRole
from scheduler.live.access.tls import Keys
from tests.support.live import DEADLINE_S
from tests.support.live_thread import LiveThread, own_port

RUN = JobSpec(command=("true",), steps=100.0)


@pytest.fixture
def port() -> Iterator[int]:
    """Of this test alone."""
    with own_port() as port:
        yield port


@pytest.fixture
def address(port: int) -> str:
    """At which nobody listens."""
    return f"127.0.0.1:{port}"


def test_nobody_answers(address: str) -> None:
    """Told with the address, once patience is over."""
    with Client(address, retry_s=0.3) as client:
        with pytest.raises(
            e.NotReachable, match=f"no scheduler answers at {address}: the connection was refused"
        ):
            client.get("1")
        with pytest.raises(e.NotReachable):
            next(iter(client.watch()))


def test_a_caller_hears_what_is_waited_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address, and for how long it is still tried; of the asynchronous client too."""
    heard: list[tuple[str, float]] = []
    clock = SimpleNamespace(monotonic=lambda: 0.1 * len(heard), sleep=lambda _: None)
    monkeypatch.setattr(
        "gavel.client.transport.channels.time", clock
    )  # time goes by with each word, and only so
    monkeypatch.setattr("gavel.client.transport.channels.SILENT_S", 3600.0)  # and no call is a long one

    def hear(error: e.GavelError | None, left_s: float) -> None:
        heard.append((str(error), round(left_s, 3)))

    async def ask() -> None:
        async with AsyncClient(address, retry_s=0.25, on_trouble=hear) as client:
            with pytest.raises(e.NotReachable, match=address):
                await client.status()

    with Client(address, retry_s=0.25, on_trouble=hear) as client, pytest.raises(e.NotReachable):
        client.status()
    first = len(heard)
    asyncio.run(ask())
    words = f"no scheduler answers at {address}: the connection was refused"
    assert {words} == {said for said, _ in heard}
    for left in ([left_s for _, left_s in heard[:first]], [left_s for _, left_s in heard[first:]]):
        assert left == [0.25, 0.15, 0.05][: len(left)]
        assert left


def test_silence_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that swallows everything makes no error for a long time."""
    monkeypatch.setattr("gavel.client.transport.channels.SILENT_S", 0.0)  # long before any call is given up
    heard: list[str] = []

    def hear(error: e.GavelError | None, left_s: float) -> None:
        heard.append(str(error))

    async def ask(address: str) -> None:
        async with AsyncClient(address, timeout_s=0.5, retry_s=0.0, on_trouble=hear) as client:
            with pytest.raises(e.NotReachable, match="did not answer in time"):
                await client.status()

    with socket.socket() as deaf:  # connections are taken, and nothing is said
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with (
            Client(address, timeout_s=0.5, retry_s=0.0, on_trouble=hear) as client,
            pytest.raises(e.NotReachable, match="did not answer in time"),
        ):
            client.status()
        asyncio.run(ask(address))
    assert [f"no answer from {address} yet"] * 2 == heard


def test_who_watches_begins_anew_when_the_scheduler_is_back(tmp_path: Path, port: int) -> None:
    """With patience: what is there is told again, then changes; it is said that nobody answered, and that it works."""
    heard: list[e.GavelError | None] = []
    with LiveThread(tmp_path, port=port) as live:
        journal = live.daemon.journal
        client = Client(live.address, on_trouble=lambda error, left_s: heard.append(error))
        (first,) = client.submit(RUN)
        events = client.watch(skip_present=True, patience_s=60.0)
        assert next(events).all_present
    with ThreadPoolExecutor(1) as pool, client:
        again = pool.submit(lambda: [next(events), next(events)])
        with LiveThread(tmp_path, journal=journal, port=port):
            there, all_there = again.result(DEADLINE_S)
        events.close()
    assert (there.job and there.job.id, there.present, all_there.all_present) == (first, True, True)
    assert isinstance(heard[0], e.NotReachable)
    assert heard[-1] is None


def test_a_scheduler_that_comes_back_is_waited_for(tmp_path: Path, port: int) -> None:
    """A submission goes through, once, when the scheduler is there again."""
    with LiveThread(tmp_path, port=port) as live:
        journal = live.daemon.journal
        with Client(live.address, retry_s=DEADLINE_S) as client:
            (first,) = client.submit(RUN, key="k")
    with ThreadPoolExecutor(1) as pool, Client(f"127.0.0.1:{port}", retry_s=DEADLINE_S) as client:
        again = pool.submit(client.submit, RUN, "k")
        with LiveThread(tmp_path, journal=journal, port=port):
            assert again.result(DEADLINE_S) == (first,)
            assert [first] == [job.id for job in client.list()]


def test_what_is_not_safe_is_asked_once(live: LiveThread) -> None:
    """A command that may have been done is not repeated; reads are."""
    asked: list[str] = []

    class Flaky(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, go_on: Any, details: Any, request: Any) -> Any:
            asked.append(details.method)
            if len(asked) < 3:
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
        assert len(asked) == 1
        assert client.status().nodes == 1
        assert len(asked) == 3
        channel.close()


def test_too_much_at_once(tmp_path: Path) -> None:
    """A limit is waited out where that helps soon; else it is told, with how long it would take."""
    config = PeopleConfig(submissions_per_s=20.0, submissions_burst=2, jobs_unfinished_max=4)
    with LiveThread(tmp_path, config=config) as live, Client(live.address, retry_s=30.0) as client:
        for _ in range(4):
            client.submit(RUN)
        with pytest.raises(e.TooMany, match=r"\b5\b.*\b4\b") as raised:
            client.submit(RUN)
        assert raised.value.retry_s == 60.0


def test_without_a_token_or_with_too_small_a_role(tmp_path: Path) -> None:
    """Two different errors; a token is made, listed without its secret, and revoked."""
    with LiveThread(tmp_path, auth="tokens") as live:
        secret = live.daemon.people.access.create("root", LiveRole.ADMIN, 1000.0)[1]
        with Client(live.address) as nobody, pytest.raises(e.NotAuthenticated):
            nobody.status()
        with Client(live.address, token="wrong") as wrong, pytest.raises(e.NotAuthenticated):
            wrong.status()
        with Client(live.address, token=secret) as admin:
            made = admin.create_token("ada", Role.VIEWER, note="for reading")
            assert (made.token.user, made.token.role, made.token.note) == ("ada", Role.VIEWER, "for reading")
            with Client(live.address, token=made.secret) as viewer:
                assert viewer.who_am_i().user == "ada"
                with pytest.raises(e.NotAllowed, match="needs the role user; ada has viewer"):
                    viewer.submit(RUN)
            assert made.token.id in [token.id for token in admin.tokens()]
            assert admin.revoke_token(made.token.id).revoked
            with Client(live.address, token=made.secret) as revoked, pytest.raises(e.NotAuthenticated):
                revoked.status()


def test_nobody_answers_the_asynchronous_client(address: str) -> None:
    """The same error."""

    async def run() -> None:
        async with AsyncClient(address, retry_s=0.1) as client:
            with pytest.raises(e.NotReachable, match="the connection was refused"):
                await client.status()

    asyncio.run(run())


def test_over_tls(tmp_path: Path) -> None:
    """With the scheduler's CA it is spoken to; with another, or none, it is not, and the error says so."""
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
            assert "no secure connection to" in str(raised.value) or "no scheduler answers" in str(
                raised.value
            )
        with Client(live.address, token=secret, retry_s=0.0) as client, pytest.raises(e.NotReachable):
            client.status()


def test_silence_that_is_noticed_with_the_answer_is_not_told() -> None:
    """Its timer may fire while the answer is taken: nobody would take the remark back."""
    told: list[object] = []
    trouble = Trouble(lambda error, left_s: told.append(error), "127.0.0.1:1")
    trouble.resolve()
    trouble.report_silence(10.0)
    assert told == []
