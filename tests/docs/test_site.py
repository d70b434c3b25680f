"""The documentation site: it builds without a warning, reaches every page, works offline, and refuses faults."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

for module in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(module, reason=f"{module} is not installed: it comes with the extra docs")

DOCS = Path(__file__).parents[2] / "docs"


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make site` does."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(docs), str(site)],
        check=False,
        cwd=docs.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


class Page(HTMLParser):
    """The ids of a page, what it loads, and what it links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect what this element names."""
        values = defaultdict(str, {key: value or "" for key, value in attributes})
        self.ids.add(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        elif tag == "link":
            # `next`, `index` and others are links between pages.
            (self.loads if values["rel"] in ("stylesheet", "icon", "preload") else self.links).append(
                values["href"]
            )
        elif values["src"]:
            self.loads.append(values["src"])


page_of = cache(Page)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of these pages, which builds without a warning."""
    site = tmp_path_factory.mktemp("site")
    done = build(DOCS, site)
    assert (done.returncode, done.stderr) == (0, "")
    return site


def pages(site: Path) -> list[Path]:
    """Return the pages of the site, without those for search and indices."""
    return [site / path.relative_to(DOCS).with_suffix(".html") for path in sorted(DOCS.rglob("*.md"))]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Scripts, styles and pictures of every page are files of the site."""
    missing = []
    for path in [*pages(site), site / "search.html"]:
        for target in page_of(path).loads:
            parts = urlsplit(target)
            if (
                parts.scheme not in ("", "data")
                or parts.netloc
                or (parts.path and not (path.parent / unquote(parts.path)).is_file())
            ):
                missing.append(f"{path.name}: {target}")
    assert missing == []
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8"), sheet.name


def test_every_link_leads_somewhere(site: Path) -> None:
    """Links between pages have a page and a heading at their end."""
    broken = []
    for path in pages(site):
        for target in page_of(path).links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            end = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_there = end.is_file() and (not parts.fragment or unquote(parts.fragment) in page_of(end).ids)
            broken += [] if is_there else [f"{path.name}: {target}"]
    assert broken == []


def test_every_page_is_reached_and_found(site: Path) -> None:
    """Links from the first page reach every page, and the search knows each."""
    reached, ahead = set(), [site / "index.html"]
    while ahead:
        path = ahead.pop()
        if path in reached or path.suffix != ".html" or not path.is_file():
            continue
        reached.add(path)
        ahead += [
            (path.parent / unquote(urlsplit(link).path)).resolve() for link in page_of(path).links if link
        ]
    assert set(pages(site)) - reached == set()
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    names = [path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")]
    assert [name for name in names if f'"{name}"' not in index] == []


def test_diagrams_are_pictures(site: Path) -> None:
    """A page shows its diagrams without a script."""
    text = (site / "architecture.html").read_text(encoding="utf-8")
    assert text.count('alt="diagram"') == (DOCS / "architecture.md").read_text().count("```mermaid") > 0
    assert "mermaid" not in text


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("[gone](gone.md)", "gone.md"),
        ("[gone](explain.md#gone)", "gone"),
        ("[gone](../gone.py)", "../gone.py"),
        ("```mermaid\nflowchart LR\n  a --> b\n```\n", "python-1.svg"),
    ],
)
def test_faults_fail_the_build(fault: str, place: str, tmp_path: Path) -> None:
    """A link to nowhere, to a missing heading or file, and a diagram that was not drawn end the build."""
    docs = small_docs(tmp_path)
    with (docs / "python.md").open("a") as page:
        page.write(f"\n\n{fault}\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode != 0
    assert place in done.stderr


def test_an_orphan_fails_the_build(tmp_path: Path) -> None:
    """A page that index.md does not link ends the build."""
    docs = small_docs(tmp_path)
    (docs / "orphan.md").write_text("# Orphan\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode != 0
    assert "orphan.md" in done.stderr


def small_docs(folder: Path) -> Path:
    """Return a copy of the configuration with three pages."""
    docs = folder / "docs"
    docs.mkdir()
    for name in ("conf.py", "diagrams.py"):
        shutil.copy(DOCS / name, docs)
    shutil.copytree(DOCS / "site", docs / "site")
    (docs / "index.md").write_text("# Index\n\n## All\n\n- [a](python.md)\n- [b](explain.md)\n")
    for name in ("python", "explain"):
        (docs / f"{name}.md").write_text(f"# {name}\n")
    return docs
