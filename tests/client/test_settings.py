"""Address and identity come from arguments, else the environment, else the settings file, else this machine."""

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
from tests.support.wording import Wording


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A settings file with two clusters."""
    path = tmp_path / "gavel" / "client.toml"
    (tmp_path / "ca.pem").write_text("x")
    lab = Context("lab.example.org:7070", 'se"cr\\et', str(tmp_path / "ca.pem"))
    write_contexts(path, Contexts("lab", {"lab": lab, "home": Context("127.0.0.1:9000")}))
    return path


def test_the_order_of_places(path: Path, tmp_path: Path) -> None:
    """The first place that names an address decides; a context's token is for its own address only."""

    def chosen(*arguments: str | None, context: str | None = None, **environ: str) -> tuple[str, str, str]:
        variables = {key.upper(): value for key, value in environ.items()}
        connection = find_connection(*arguments, context=context, environ=variables, path=path)
        return connection.address, connection.token, connection.origin

    ca = str(tmp_path / "ca.pem")
    assert chosen() == ("lab.example.org:7070", 'se"cr\\et', "context lab")
    assert chosen(context="home") == ("127.0.0.1:9000", "", "context home")
    assert chosen(gavel_context="home") == ("127.0.0.1:9000", "", "context home")
    assert chosen(gavel_address="other:1", gavel_ca=ca) == ("other:1", "", "GAVEL_ADDRESS")
    assert chosen(gavel_address="other:1", context="home") == ("127.0.0.1:9000", "", "context home")
    assert chosen("arg", gavel_address="other:1") == ("arg:7070", "", "the argument")
    assert chosen(gavel_token="t1") == ("lab.example.org:7070", "t1", "context lab")
    assert chosen("arg:1", "t2", gavel_token="t1") == ("arg:1", "t2", "the argument")


def test_without_anything_it_is_this_machine(tmp_path: Path) -> None:
    """The default is this machine without TLS; a connection to another machine always uses TLS."""
    default = find_connection(environ={}, path=tmp_path / "none.toml")
    assert (default.address, default.origin, default.uses_tls) == ("127.0.0.1:7070", "the default", False)
    assert Connection("gavel.example.org:7070").uses_tls
    assert Connection("127.0.0.1:7070", ca="ca.pem").uses_tls


def test_a_token_is_not_shown() -> None:
    """The text of a connection, as in tracebacks and logs, does not contain the token."""
    assert "secret" not in repr(Connection("a:1", "secret")) + repr(Context("a:1", "secret"))


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    """The file holds tokens, so only its owner may read it; what was written is read back."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    known = read_contexts(path)
    assert (
        known.current,
        list(known.contexts),
        known.contexts["lab"].token,
    ) == ("lab", ["lab", "home"], 'se"cr\\et')


@pytest.mark.parametrize(
    ("text", "address"),
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
def test_addresses_in_all_their_forms(text: str, address: str) -> None:
    """Names and addresses of either kind are accepted, with or without a port."""
    assert address == checked_address(text)


@pytest.mark.parametrize(
    "text", ["", ":7070", "host:0", "host:99999", "host:x", "http://host:1", "a b:1", "a\n:1", "a\nb"]
)
def test_wrong_addresses(text: str, wording: Wording) -> None:
    """A wrong address is refused before any call, in one line with an example."""
    with pytest.raises(Invalid, match="HOST:PORT") as raised:
        checked_address(text)
    assert len(str(raised.value).splitlines()) == 1
    wording(raised.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("current = ", ""),
        ("color = 1", ""),
        ("contexts = 3", ""),
        ("current = 3", "current: "),
        ("[contexts.a]\naddress = 3", "contexts.a: "),
        ("[contexts.a]\ntoken = 'x'", "contexts.a.address: "),
        ("[contexts.a]\naddress = 'x'\npassword = 'y'", "contexts.a.password: "),
        ("current = 'b'\n[contexts.a]\naddress = 'x'", "'b'"),
    ],
    ids=["no TOML", "unknown key", "no table", "no name", "no text", "no address", "password", "no context"],
)
def test_wrong_files(tmp_path: Path, text: str, key: str, wording: Wording) -> None:
    """The error is one line that names the file and the key."""
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(Invalid) as raised:
        find_connection(environ={}, path=path)
    assert (str(path) in str(raised.value), key in str(raised.value)) == (True, True)
    assert "\n" not in str(raised.value)
    wording(raised.value, file=path)


def test_wrong_settings(tmp_path: Path, wording: Wording) -> None:
    """A missing CA, a token of two lines and a context of two words are refused."""
    none = tmp_path / "none.toml"
    with pytest.raises(Invalid, match=r"^ca: ") as raised:
        find_connection("a:1", ca=str(tmp_path / "missing.pem"), environ={}, path=none)
    wording(raised.value, folder=tmp_path)
    with pytest.raises(Invalid, match=r"^token: ") as raised:
        find_connection("a:1", "two\nlines", environ={}, path=none)
    wording(raised.value)
    with pytest.raises(Invalid, match="'a b'") as raised:
        write_contexts(none, Contexts("a b", {"a b": Context("x:1")}))
    wording(raised.value)


def test_the_path_of_the_file() -> None:
    """The settings file is in $XDG_CONFIG_HOME or, if that is not set, in ~/.config."""
    assert Path("/x/gavel/client.toml") == config_path({"XDG_CONFIG_HOME": "/x", "HOME": "/h"})
    assert Path("/h/.config/gavel/client.toml") == config_path({"HOME": "/h"})
