"""Sealed cookies, the code, and the file of the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.client.errors import Invalid
from gavel.web.sessions import Seal, read_key

KEY = bytes(range(32))


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=100))
def test_a_cookie_contains_the_token_and_nobody_can_read_it(token: str) -> None:
    """Sealed and opened again; each time another text, and the token does not appear in it."""
    seal = Seal(KEY)
    cookie = seal.sealed(token)
    assert token == seal.token_in(cookie)
    assert cookie != seal.sealed(token)
    assert len(token) < 8 or token not in cookie
    assert len(cookie) < 4000


def test_a_changed_or_foreign_cookie_is_nothing() -> None:
    """Each changed character, another gateway's cookie, a piece of one, and nonsense."""
    seal = Seal(KEY)
    cookie = seal.sealed("gavel_1_secret")
    for index, letter in enumerate(cookie):
        changed = f"{cookie[:index]}{'A' if letter != 'A' else 'Q'}{cookie[index + 1 :]}"
        assert seal.token_in(changed) is None, index
    for other in (Seal(bytes(32)).sealed("gavel_1_secret"), cookie[:20], "", "é", "=" * 50, seal.code):
        assert seal.token_in(other) is None


def test_the_code_stays_as_long_as_the_key() -> None:
    """A gateway with the same key accepts the same code, another one does not."""
    assert Seal(KEY).code == Seal(KEY).code
    assert len(Seal(KEY).code) == 32
    assert Seal(KEY).is_code(Seal(KEY).code)
    for wrong in (Seal(bytes(32)).code, "", Seal(KEY).code[:-1], "\ud800"):
        assert not Seal(KEY).is_code(wrong)


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    """A file of mode 600; without a file, another key at each start."""
    path = tmp_path / "state" / "key"
    key = read_key(path)
    assert key == read_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(None) != read_key(None)


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    """Too short, readable by others, a directory: each with the option's name."""
    short, public = tmp_path / "short", tmp_path / "public"
    short.write_bytes(b"key")
    short.chmod(0o600)
    public.write_bytes(KEY)
    public.chmod(0o644)
    for path in (short, public, tmp_path):
        with pytest.raises(Invalid) as error:
            read_key(path)
        assert error.value.field == "key_file"
