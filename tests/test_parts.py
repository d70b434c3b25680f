"""`make parts`: what it installs, and which tests wait for it."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from tests.support import parts
from tests.support.parts import MODULES, PROGRAMS, commands, main, needs

ROOT = Path(__file__).parents[1]


def test_a_debian_package_is_installed_once_whatever_of_it_is_missing() -> None:
    """Two programs of one package are one argument; nothing else is installed."""
    update, install = commands(["prometheus", "promtool"], is_root=True)
    assert update[-2:] == ["-q", "update"]
    assert install[-3:] == ["--yes", "--no-install-recommends", "prometheus"]
    assert install[0] != "sudo"


def test_without_root_programs_need_sudo_and_modules_do_not() -> None:
    """Modules go into the virtual environment."""
    update, install, pip = commands(["chromium", "playwright"], is_root=False)
    assert (update[0], install[0]) == ("sudo", "sudo")
    assert pip[-1] == ".[parts]"


def test_nothing_is_installed_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If everything is there, no command runs, and the parts are named."""
    monkeypatch.setattr(parts, "missing", lambda *names: [])
    monkeypatch.setattr(parts, "commands", lambda *_, **__: pytest.fail("a command would run"))
    assert main() == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*PROGRAMS, *MODULES))


def test_a_command_that_fails_fails_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make parts` ends with an error if a package cannot be installed, or is not there afterwards."""
    monkeypatch.setattr(parts, "missing", lambda *names: ["playwright"])
    for program, code in (("false", 1), ("true", 1)):
        monkeypatch.setattr(parts, "commands", lambda *_, program=program, **__: [[program]])
        assert main() == code


def test_without_apt_get_programs_have_to_be_installed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems nothing is tried."""
    monkeypatch.setattr(parts, "missing", lambda *names: ["chromium"])
    monkeypatch.setattr(parts.shutil, "which", lambda name: None)
    monkeypatch.setattr(parts, "commands", lambda *_, **__: pytest.fail("a command would run"))
    assert main() == 1


def test_a_test_is_skipped_by_the_names_of_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what is missing, and how to get it."""
    monkeypatch.setattr(parts, "missing", lambda *names: ["chromium"])
    mark = needs("chromium", "playwright").mark
    assert mark.args == (True,)
    assert mark.kwargs["reason"] == "needs chromium: `make parts`"


def test_the_extra_holds_the_modules_with_pinned_versions() -> None:
    """setup.cfg lists their distributions, and constraints.txt pins each."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = [line.partition(">")[0] for line in config["options.extras_require"]["parts"].split()]
    assert [name.replace("-", "_") for name in listed] == list(MODULES)
    pinned = {line.partition("=")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {*listed} <= pinned
