"""Ports stay open, whatever is sent to them; if one closes nevertheless, the daemon notices."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.live.config import Address
from scheduler.live.listening import Port, PortTaken
from tests.support import http2
from tests.support.daemon_thread import DaemonThread

TIMEOUT_S = 60.0


def test_no_method_name_closes_the_port(tmp_path) -> None:
    """Method names that are empty, unknown or not UTF-8 get UNIMPLEMENTED, and the next caller is served."""
    with DaemonThread(tmp_path) as daemon:
        for path in (b"/gavel.v1.Jobs/\xff\xfe", b"\xff", b"/", b"/gavel.v1.Jobs/None"):
            assert b"there is no such method" in http2.answer(daemon.address, http2.request(path))
        odd = http2.request(b"/gavel.v1.Jobs/ListJobs", [(b"x-gavel-user", b"\xff\xfe")])
        assert b"grpc-status" in http2.answer(daemon.address, odd)
        assert b"grpc-status\x010" in http2.answer(daemon.address, http2.request(b"/gavel.v1.Jobs/ListJobs"))


def test_a_port_that_closes_by_itself_is_noticed() -> None:
    """A task that waits for the loss of the port is woken, whatever ended its server."""

    async def loss() -> str:
        port = Port([])
        await port.open(Address("127.0.0.1", 0), "--listen")
        waiting = asyncio.create_task(port.wait_until_lost())
        await asyncio.sleep(0)
        await port._server.stop(None)
        return str(await asyncio.wait_for(waiting, TIMEOUT_S))

    assert "127.0.0.1" in asyncio.run(loss())


@pytest.mark.parametrize("host", ["gavel..example.com", "x" * 70])
def test_an_impossible_name_is_refused_like_an_unknown_one(host: str) -> None:
    """A slip in an address ends in one line with the remedy."""

    async def opened() -> Address:
        return await Port([]).open(Address(host, 0), "--listen")

    with pytest.raises(PortTaken):
        asyncio.run(opened())
