"""Messages are compared with tests/golden/wording, and nothing there is out of date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.wording import FOLDER, TESTS, Sections, Wording, in_order, merged, plain, read, written

FILES = sorted(FOLDER.rglob("*.txt"))
SECTIONS: Sections = {"test_b[x]": ["one line", "two\n\nlines"], "test_a": ["a text"], "test_gone": ["old"]}


def test_a_text_is_compared_with_the_one_kept_for_its_test() -> None:
    """The second text of a test is compared with the second one of its section."""
    wording = Wording("test_a", ["error: no job 1", "error: no job 2"])
    wording("error: no job 1")
    with pytest.raises(AssertionError, match="the wording has changed"):
        wording("error: no such job 2")


def test_texts_too_many_or_too_few_are_errors() -> None:
    """A missing text and a text too many are errors, so that no section is out of date."""
    wording = Wording("test_a", ["error: no job 1"])
    with pytest.raises(AssertionError, match="no longer hands over"):
        wording.close()
    wording("error: no job 1")
    wording.close()
    with pytest.raises(AssertionError, match="has no such text yet"):
        wording("error: no job 2")


def test_what_varies_is_replaced_by_its_name() -> None:
    """Values, and matches of patterns, become their names."""
    text = "error: /data/x.y/job.yaml: took 3.5 s  \n"
    assert plain(text, {"folder": Path("/data/x.y"), "time": re.compile(r"[\d.]+ s")}) == (
        "error: <folder>/job.yaml: took <time>"
    )


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    """Several texts of a test, blank lines within them and parameters survive writing and reading."""
    (tmp_path / "test_x.txt").write_text(written(SECTIONS), encoding="utf-8")
    assert read(tmp_path / "test_x.txt") == SECTIONS
    assert read(tmp_path / "missing.txt") == {}


def test_sections_follow_the_order_of_the_module_and_go_with_their_tests() -> None:
    """Sections have the order of their tests, however few tests ran when the file was written."""
    module = "def test_a() -> None: ...\n\n\nasync def test_b(x) -> None: ...\n"
    assert list(in_order(SECTIONS, module)) == ["test_a", "test_b[x]"]


def test_removed_cases_go_when_their_function_runs() -> None:
    """Functions that did not run keep their sections."""
    collected: Sections = {"test_b[y]": ["new"]}
    assert merged(SECTIONS, collected) == {"test_a": ["a text"], "test_gone": ["old"], "test_b[y]": ["new"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_section_belongs_to_a_test(path: Path) -> None:
    """Sections of renamed or removed tests are gone; python -m tests.golden.rewrite --wording removes them."""
    module = (TESTS / path.relative_to(FOLDER)).with_suffix(".py").read_text(encoding="utf-8")
    assert in_order(read(path), module) == read(path)
