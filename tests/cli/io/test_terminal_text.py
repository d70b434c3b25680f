"""Output of jobs on a terminal: colours pass, other control sequences are escaped."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gavel.cli.io.terminal_text import TerminalText

ALLOWED = re.compile(r"\x1b\[[0-9;:]{0,32}m")
PIECES = st.sampled_from(
    [
        b"\x1b",
        b"[",
        b"31;1",
        b"m",
        b"]0;title\x07",
        b"\x9b",
        b"\xc2\x9b2J",
        b"\xe2\x80\xae",
        b"word\n",
        b"\xc3",
        b"\xa4",
    ]
)


def on_terminal(*parts: bytes) -> str:
    """Return the text that the terminal receives."""
    written: list[bytes] = []
    text = TerminalText(written.append)
    for part in parts:
        text.write(part)
    text.end()
    return b"".join(written).decode("utf-8")


def test_colours_and_new_lines_reach_the_terminal():
    """Colours pass, and are reset at the end of the output."""
    assert on_terminal(b"plain\tx\r\n") == "plain\tx\r\n"
    assert on_terminal("schön 🙂".encode()) == "schön 🙂"
    assert on_terminal(b"\x1b[1;38:5:9mred\n") == "\x1b[1;38:5:9mred\n\x1b[0m"


def test_everything_else_is_shown_escaped():
    """Titles, cleared screens, cursor moves, typed replies, 8-bit controls and reversed text are escaped."""
    for control, words in (
        (b"\x1b]0;rm -rf\x07", r"\x1b]0;rm -rf\x07"),
        (b"\x1b[2J", r"\x1b[2J"),
        (b"\x1b[1A\x1b[K", r"\x1b[1A\x1b[K"),
        (b"\x1b[6n\x1bc", r"\x1b[6n\x1bc"),
        (b"\x08\x7f\x00", r"\x08\x7f\x00"),
        (b"\x9b2J", r"\x9b2J"),
        (b"\xc2\x9b2J", r"\x9b2J"),
        ("\u202eabc".encode(), r"\u202eabc"),
        (b"\x1b[31", r"\x1b[31"),
        (b"\x1b[" + b"1;" * 40 + b"m", r"\x1b[" + "1;" * 40 + "m"),
    ):
        assert on_terminal(control) == words


@given(st.lists(PIECES))
def test_pieces_come_to_the_same_as_the_whole(pieces: list[bytes]):
    """The result does not depend on how output is cut, and holds no control character but colours."""
    text = on_terminal(*pieces)
    assert text == on_terminal(b"".join(pieces))
    rest = ALLOWED.sub("", text)
    assert rest.replace("\n", "").isprintable()
