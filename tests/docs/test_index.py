"""docs/index.md: the table of contents of the pages, on a forge and of the site."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_is_listed() -> None:
    """Each page is linked from the index; the decisions are listed by number (no Sphinx needed to find an orphan)."""
    listed = set(re.findall(r"\]\(([\w./-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("adr/0")}
    assert listed | {"index.md"} == pages - decisions
