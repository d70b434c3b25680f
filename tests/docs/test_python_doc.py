"""docs/python.md: its first program prints what the page says, and the calls of its table exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gavel import AsyncClient, Client
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Exit
from tests.client.conftest import live, no_settings  # noqa: F401
from tests.support.live_thread import LiveThread

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = [
    re.sub(r"^    ", "", block, flags=re.MULTILINE)
    for block in re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", PAGE)
]


def test_the_first_program(
    live: LiveThread,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output of the program is the block below it; here the job ends as soon as it is submitted."""
    program, expected = BLOCKS[:2]
    submit = Client.submit

    def ends(client: Client, *arguments: object) -> tuple[str, ...]:
        ids = submit(client, *arguments)  # type: ignore[arg-type]
        lease = live.do(live.daemon.run_job(ids[0]))
        live.do(live.daemon.report("n1", exits=(Exit(lease, "finished", 9.0, 9.0, 1.0, 2.0, 0, ""),)))
        return ids

    monkeypatch.setattr(Client, "submit", ends)
    monkeypatch.setenv("GAVEL_ADDRESS", live.address)
    live.daemon.nodes.chunks = [jobs_pb2.LogChunk(job="1", attempt=1, data=b"hello\n")]
    exec(compile(program, "python.md", "exec"), {})
    assert capsys.readouterr().out == expected


def test_the_calls_exist() -> None:
    """Both clients have every call that the page names."""
    calls = set(re.findall(r"`client\.(\w+)\(", PAGE)) | {"hold", "release", "requeue", "update"}
    assert calls >= {"queue", "logs", "explain"}
    assert [name for name in calls if not (hasattr(Client, name) and hasattr(AsyncClient, name))] == []
