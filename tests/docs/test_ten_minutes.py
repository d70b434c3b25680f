"""The pages "in ten minutes": every command runs in order, against real programs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.transcripts import check, follow, running, steps

PAGES = Path(__file__).parents[2] / "docs" / "ten-minutes"


@pytest.mark.parametrize("name", ["ml-engineers", "operators"])
def test_with_a_scheduler(name: str, tmp_path: Path) -> None:
    """The commands of these pages run beside `gavel up`."""
    folder = tmp_path / "work"
    folder.mkdir()
    with running(tmp_path / "up") as address:
        follow(PAGES / f"{name}.md", folder, GAVEL_ADDRESS=address)


def test_in_virtual_time(tmp_path: Path) -> None:
    """The researchers' commands need no scheduler."""
    follow(PAGES / "researchers.md", tmp_path)


def test_no_page_is_forgotten() -> None:
    """Each page of the folder is tried above, and has commands."""
    assert {path.stem for path in PAGES.glob("*.md")} == {"ml-engineers", "operators", "researchers"}
    assert all(len(steps(path.read_text(encoding="utf-8"))) > 5 for path in PAGES.glob("*.md"))


@pytest.mark.parametrize(
    ("expected", "lines", "fits"),
    [
        (["a …", "…", "z"], ["a b c", "m", "z"], True),
        (["a …", "…", "z"], ["a b c", "z"], True),
        (["a   b"], ["a b"], True),
        (["a b"], ["a b", "c"], False),
        (["a", "b"], ["b", "a"], False),
    ],
)
def test_outputs_are_compared(expected: list[str], lines: list[str], fits: bool) -> None:
    """`…` stands for any text or any lines; nothing else may differ but gaps."""
    try:
        check("x", expected, lines)
    except AssertionError:
        assert not fits
    else:
        assert fits
