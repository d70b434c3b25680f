"""Cells of results: measured once, kept, and written into their page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import cells


@dataclass(frozen=True)
class Square:
    """A cell whose figure is a square."""

    number: int

    @property
    def name(self) -> str:
        """The name of the cell's file."""
        return f"square_{self.number}"


def measure(cell: Square) -> cells.Figures:
    """Measure a cell."""
    return {"square": cell.number**2}


def test_a_cell_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished cells are kept, also between runs; with `fresh` all are measured again."""
    monkeypatch.setattr(cells, "RESULTS", tmp_path / "results")
    first, second = Square(3), Square(4)
    assert [*cells.measure_missing([first], measure, processes=1)] == [(first, {"square": 9}, "1/1")]
    again = [*cells.measure_missing([first, second], measure, processes=1)]
    assert again == [(second, {"square": 16}, "1/1")]
    assert len([*cells.measure_missing([first, second], measure, processes=1, fresh=True)]) == 2
    assert [cells.kept_figures(cell) for cell in (first, Square(5))] == [{"square": 9}, None]


def test_figures_replace_those_of_their_own_part_of_the_page(tmp_path: Path) -> None:
    """Text around the figures, and figures of another part, stay."""
    page = tmp_path / "page.md"
    page.write_text(f"A\n<!-- one -->\n\nold\n{cells.END}\nB\n<!-- two -->\n\nkept\n{cells.END}\nC\n")
    cells.write_figures(page, "<!-- one -->", ["new", ""])
    assert page.read_text() == (
        f"A\n<!-- one -->\n\nnew\n\n{cells.END}\nB\n<!-- two -->\n\nkept\n{cells.END}\nC\n"
    )
