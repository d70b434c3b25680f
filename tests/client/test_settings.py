"""Which scheduler, and as whom: arguments before the environment before the file before this machine."""

import stat
from pathlib import Path

import pytest

from gavel.client.errors import Invalid
from gavel.client.settings import (
    Connection,
    Context,
    Contexts,
    checked_address,
    config_path,
    find_connection,
    read_contexts,
    write_contexts,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two clusters."""
    path = tmp_path / "gavel" / "client.toml"
    (tmp_path / "ca.pem").write_text("x")
    lab = Context("lab.example.org:7070", 'se"cr\\et', str(tmp_path / "ca.pem"))
    write_contexts(path, Contexts("lab", {"lab": lab, "home": Context("127.0.0.1:9000")}))
    return path


def test_the_order_of_places(path: Path, tmp_path: Path) -> None:
    """The first that names an address decides; a token of a context is for its own address only."""

    def found(*arguments: str | None, context: str | None = None, **environ: str) -> tuple[str, str, str]:
        known = {key.upper(): value for key, value in environ.items()}
        one = find_connection(*arguments, context=context, environ=known, path=path)
        return one.address, one.token, one.origin

    ca = str(tmp_path / "ca.pem")
    assert found() == ("lab.example.org:7070", 'se"cr\\et', "context lab")
    assert found(context="home") == ("127.0.0.1:9000", "", "context home")
    assert found(gavel_context="home") == ("127.0.0.1:9000", "", "context home")
    assert found(gavel_address="other:1", gavel_ca=ca) == ("other:1", "", "GAVEL_ADDRESS")
    assert found(gavel_address="other:1", context="home") == ("127.0.0.1:9000", "", "context home")
    assert found("arg", gavel_address="other:1") == ("arg:7070", "", "the argument")
    assert found(gavel_token="mine") == ("lab.example.org:7070", "mine", "context lab")
    assert found("arg:1", "theirs", gavel_token="mine") == ("arg:1", "theirs", "the argument")


def test_without_anything_it_is_this_machine(tmp_path: Path) -> None:
    """And in the clear, which no other machine is spoken to in."""
    one = find_connection(environ={}, path=tmp_path / "none.toml")
    assert (one.address, one.origin, one.uses_tls) == ("127.0.0.1:7070", "the default", False)
    assert Connection("gavel.example.org:7070").uses_tls
    assert Connection("127.0.0.1:7070", ca="ca.pem").uses_tls


def test_a_token_is_not_shown() -> None:
    """Neither in a traceback nor in a log."""
    assert "secret" not in repr(Connection("a:1", "secret")) + repr(Context("a:1", "secret"))


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    """There are tokens in it; what was written is what is read."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    known = read_contexts(path)
    assert (
        known.current,
        list(known.contexts),
        known.contexts["lab"].token,
    ) == ("lab", ["lab", "home"], 'se"cr\\et')


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("host", "host:7070"),
        ("host:1", "host:1"),
        ("host:00080", "host:80"),
        ("127.0.0.1", "127.0.0.1:7070"),
        ("::1", "[::1]:7070"),
        ("[::1]:9", "[::1]:9"),
        ("[::1]", "[::1]:7070"),
    ],
)
def test_addresses_in_all_their_forms(said: str, address: str) -> None:
    """With or without a port, of either kind."""
    assert address == checked_address(said)


@pytest.mark.parametrize(
    "said", ["", ":7070", "host:0", "host:99999", "host:x", "http://host:1", "a b:1", "a\n:1"]
)
def test_addresses_that_are_none(said: str) -> None:
    """Refused before a call, with an example."""
    with pytest.raises(Invalid, match="is not HOST:PORT, such as"):
        checked_address(said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("current = ", "cannot be read"),
        ("color = 1", "may hold only 'current' and tables"),
        ("contexts = 3", "may hold only 'current' and tables"),
        ("current = 3", "current: must be the name"),
        ("[contexts.a]\naddress = 3", "contexts.a: must be a table of strings"),
        ("[contexts.a]\ntoken = 'x'", "contexts.a.address: is missing"),
        (
            "[contexts.a]\naddress = 'x'\npassword = 'y'",
            "contexts.a.password: unknown; known: address, token, ca",
        ),
        ("current = 'b'\n[contexts.a]\naddress = 'x'", "there is no context 'b' in .*; known: a"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    """One line that names the file and the key."""
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(Invalid, match=words):
        find_connection(environ={}, path=path)


def test_settings_that_are_wrong(tmp_path: Path) -> None:
    """A CA that is not there, a token with a line break, a context by a strange name."""
    none = tmp_path / "none.toml"
    with pytest.raises(Invalid, match="ca: there is no file"):
        find_connection("a:1", ca=str(tmp_path / "missing.pem"), environ={}, path=none)
    with pytest.raises(Invalid, match="token: must be printable ASCII"):
        find_connection("a:1", "two\nlines", environ={}, path=none)
    with pytest.raises(Invalid, match="cannot be a context"):
        write_contexts(none, Contexts("a b", {"a b": Context("x:1")}))


def test_where_the_file_is() -> None:
    """By the rules of the desktop."""
    assert Path("/x/gavel/client.toml") == config_path({"XDG_CONFIG_HOME": "/x", "HOME": "/h"})
    assert Path("/h/.config/gavel/client.toml") == config_path({"HOME": "/h"})
