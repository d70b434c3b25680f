"""The documentation site: `make site` builds it from these pages, with Sphinx, and fails at the first warning.

The pages are plain Markdown that a forge shows as it is. Here, links to code become names of files, mermaid diagrams
become the pictures that docs.diagrams drew, and the links of index.md become the table of contents, so that a page that
index.md does not link is an error. The decisions in adr/ are listed by their number.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from docs.diagrams import BLOCK, PICTURES, digest, picture  # noqa: E402 - found by the line above
from gavel import __version__  # noqa: E402

project = "Gavel"
version = release = __version__
copyright = "the authors of Gavel"
extensions = ["myst_parser"]
exclude_patterns = ["**/__pycache__"]
# results.md is made by a program, which counts its headings from another page.
suppress_warnings = ["myst.header"]
# The anchors of headings, as forges make them.
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Gavel"
html_static_path = ["site"]
html_css_files = ["pictures.css"]
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False
# Blocks of shell and of output look alike in these pages.
highlight_language = "none"
pygments_dark_style = "monokai"
CODE_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+)(?:#[^)]*)?\)")
PAGE_LINK = re.compile(r"\]\(([\w./-]+)\.md\)")


def site_page(app: Any, page: str, source: list[str]) -> None:
    """Turn a page of the forge into a page of the site."""
    text = BLOCK.sub(_drawing(page), source[0])
    text = CODE_LINK.sub(lambda link: _code_name(page, link), text)
    if page == "index":
        text += _contents(text)
    elif page == "adr/README":
        text += _table("Decisions", "0*")
    source[0] = text


def _drawing(page: str) -> Any:
    numbers = iter(range(1, 100))

    def drawn(block: re.Match[str]) -> str:
        name = picture(page, next(numbers))
        path = PICTURES / name
        if not path.is_file() or digest(block[1]) not in path.read_text(encoding="utf-8"):
            raise ValueError(f"{page}: {name} is not the picture of its diagram: python -m docs.diagrams")
        up = "../" * page.count("/")
        return f"![diagram]({up}images/diagrams/{name})\n"

    return drawn


def _code_name(page: str, link: re.Match[str]) -> str:
    """Return the name of a file outside these pages in place of the link to it; refuse a link that leads nowhere."""
    words, up, target = link.groups()
    path = (DOCS / page).parent / up / target
    if path.resolve().is_relative_to(DOCS):
        return link[0]
    if not path.exists():
        raise ValueError(f"{page}: links to {up}{target}, which does not exist")
    name = f"`{target.rstrip('/')}`"
    return name if words.strip("`") in target else f"{words} ({name})"


def _contents(index: str) -> str:
    """Return a table of contents for each section, from the section's links."""
    return "".join(
        _table(section.partition("\n")[0], *dict.fromkeys(PAGE_LINK.findall(section)))
        for section in index.split("\n## ")[1:]
    )


def _table(caption: str, *pages: str) -> str:
    listed = "\n".join(pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{listed}\n```\n"


def setup(app: Any) -> None:
    """Register the conversion of pages."""
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", site_page)
