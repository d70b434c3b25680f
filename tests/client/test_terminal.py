"""A session at a terminal: what the user reads when a connection continues."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gavel.client import Client
from gavel.client.terminal import TerminalSession
from protos.gavel.v1 import jobs_pb2 as pb
from tests.support.wording import Wording


@pytest.mark.parametrize("offset", [5, 105, 0])
def test_output_continues_or_says_what_is_missing(offset: int, wording: Wording) -> None:
    """After a lost connection: the next output, output that the terminal dropped, or that of a new process."""

    def follow(next_call: Any, patience_s: float) -> Iterator[pb.FromJob]:
        for start, data in ((0, b"hello"), (offset, b" world")):
            next_call()
            yield pb.FromJob(opened=pb.ConnectionOpened(offset=start))
            yield pb.FromJob(data=data)
        yield pb.FromJob(exit_code=3)

    client = cast(Client, SimpleNamespace(_wire=SimpleNamespace(follow=follow)))
    session = TerminalSession(client, "7")
    first, *notice, last = session.output()
    assert (first, last) == (b"hello", b" world")
    wording(b"".join(notice).decode().strip())
    assert session.exit_code == 3
