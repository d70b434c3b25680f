"""Lines of styled text: their width, how they are cut, and which control sequences reach a terminal."""

import pytest

from gavel.cli.io.lines import Line, fitted, print_lines, text_width


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("chat", 4), ("v100×2 …", 8), ("█▓░", 3), ("训练", 4), ("é\u0301", 1), ("👍", 2)],
)
def test_the_width_of_a_text(text: str, width: int) -> None:
    """Wide characters count twice and combining ones not at all."""
    assert text_width(text) == width


@pytest.mark.parametrize("width", range(12))
def test_a_cut_line_fits(width: int) -> None:
    """A line is never wider than asked for, ends in … if it was cut, and keeps the style of what is left."""
    line = Line("ab", "red").add("训练").add("cd", "green")
    cut = line.cut(width)
    assert cut.width <= width
    assert (cut.plain == line.plain) == (width >= 8)
    assert cut.plain.endswith("…") == (0 < width < 8)
    assert fitted(line, width).width == fitted(line, width, right=True).width == width


def test_cutting_changes_no_other_line() -> None:
    """A line that was cut, padded or stripped is a line of its own."""
    line = Line("chat  ", "red")
    assert [other.plain for other in (line.cut(3), line.stripped(), fitted(line, 8))] == [
        "ch…",
        "chat",
        "chat    ",
    ]
    assert line.plain == "chat  "
    assert Line("  ").add(" ").stripped().plain == ""


def test_styles_for_a_terminal() -> None:
    """Each part has its own style; without colours, bold and dim remain."""
    line = Line("id", "bold").add(" ").add("failed", "red")
    assert line.styled() == "\x1b[1mid\x1b[0m \x1b[31mfailed\x1b[0m"
    assert line.styled(colours=False) == "\x1b[1mid\x1b[0m failed"


def test_a_file_gets_plain_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a file gets no control sequences, unless FORCE_COLOR asks for them."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = [Line("a", "red"), Line("b")]
    print_lines(lines)
    assert capsys.readouterr().out == "a\nb\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_lines(lines)
    assert capsys.readouterr().out == "\x1b[31ma\x1b[0m\nb\n"
