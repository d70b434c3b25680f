"""`gavel web`: its options, its refusals, and the page of `gavel up`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import Client
from tests.cli.conftest import run
from tests.e2e.cluster import PATIENCE_S, processes_of
from tests.support.up import Up
from tests.support.web import Gateway
from tests.support.wording import Wording
from worker_agent.shim import process_tree


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder; the processes that use it are killed after the test, however the test ends."""
    yield tmp_path / "up"
    process_tree.kill_all(lambda: processes_of(tmp_path / "up"))


def test_gavel_up_has_a_page(folder: Path) -> None:
    """Its line has the address with the code, which signs in; it stops with the cluster."""
    up = Up(folder, "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0")
    address = up.address()
    assert up.process.stdout is not None
    label, _, url = up.process.stdout.readline().strip().partition(": ")
    assert label == "its web page"
    browser = Gateway(url).signed_in()
    with Client(address, retry_s=PATIENCE_S) as client:
        assert browser.get("/v1/status").json["epoch"] == client.status().epoch
    assert (folder / "web" / "key").stat().st_mode & 0o077 == 0
    assert "code" not in (folder / "logs" / "web.log").read_text()
    up.process.send_signal(signal.SIGINT)
    assert up.ended()[0] == 0
    assert processes_of(folder) == []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """With the line that installs it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("web")
    assert result.exit_code == 2
    wording(result.stderr)


@pytest.mark.parametrize(
    "options",
    [
        ("--listen", "0.0.0.0:7080"),
        ("--listen", "nowhere"),
        ("--listen", "127.0.0.1:99999"),
        ("--name", "gavel.example.org"),
        ("--tls-cert", "cert.pem"),
        ("--listen", "0.0.0.0:7080", "--tls-cert", "setup.cfg", "--tls-key", "setup.cfg"),
        ("--token-file", "missing"),
        ("--token-file", "/dev/null", "--name", "gavel.example.org"),
        ("--key-file", "/dev/null/key"),
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused(options: tuple[str, ...], wording: Wording) -> None:
    """Before it serves anything: one line, with what to do."""
    result = run("web", *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    wording(result.stderr)


def test_a_certificate_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The line names the file."""
    (tmp_path / "cert.pem").write_text("nonsense")
    monkeypatch.setenv("GAVEL_TOKEN", "gavel_1_x")
    result = run("web", "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "cert.pem"))
    assert result.exit_code == 2
    wording(result.stderr, folder=tmp_path)
