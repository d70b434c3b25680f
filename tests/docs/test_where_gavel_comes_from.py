"""Nobody is told to install `gavel` from a package index: what is there under that name is somebody else's."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")),
    *(
        path
        for folder in ("docs", "examples", "deploy", "gavel", "worker_agent", "scheduler")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".yaml", ".toml", ".service", ".example")
    ),
]
BY_NAME = re.compile(
    r"\b(?:pip|pipx|uv(?: pip)?)3? (?:install|download|add)\b[^\n`|]*[\s'\"]gavel(?![\w./-])"
)


def test_nobody_is_told_to_install_it_by_name() -> None:
    """`pip install .` in a clone, or a wheel's file; never the name alone, with or without an extra."""
    assert [str(path) for path in READ if BY_NAME.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("said", ["pip install gavel", "pip install -U 'gavel[ray]'", "pipx install gavel\n"])
def test_that_would_be_found(said: str) -> None:
    """The search sees what it looks for."""
    assert BY_NAME.search(said)


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_first_pages_say_where_it_comes_from(page: str) -> None:
    """Before the first command that installs anything."""
    beginning = (ROOT / page).read_text(encoding="utf-8").partition("    make ")[0].partition("```sh")[0]
    assert re.search(r"clone of this\s+repository", beginning)
    assert "package index" in beginning.replace("\n", " ")
