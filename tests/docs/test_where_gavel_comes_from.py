"""No page installs `gavel` from a package index, where that name belongs to another project."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")),
    *(
        path
        for folder in ("docs", "examples", "deploy", "gavel", "worker_agent", "scheduler")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".yaml", ".toml", ".service", ".example")
    ),
]
INSTALL_BY_NAME = re.compile(
    r"\b(?:pip|pipx|uv(?: pip)?)3? (?:install|download|add)\b[^\n`|]*[\s'\"]gavel(?![\w./-])"
)


def test_no_page_installs_it_by_name() -> None:
    """Pages install from a clone or a wheel's file, never by the name alone, with or without an extra."""
    assert [str(path) for path in PAGES if INSTALL_BY_NAME.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("text", ["pip install gavel", "pip install -U 'gavel[ray]'", "pipx install gavel\n"])
def test_an_installation_by_name_would_be_noticed(text: str) -> None:
    """The pattern matches installations by name."""
    assert INSTALL_BY_NAME.search(text)


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_first_pages_name_its_source(page: str) -> None:
    """The page names the source of Gavel before the first command that installs anything."""
    beginning = (ROOT / page).read_text(encoding="utf-8").partition("    make ")[0].partition("```sh")[0]
    assert re.search(r"clone of this\s+repository", beginning)
    assert "package index" in beginning.replace("\n", " ")
