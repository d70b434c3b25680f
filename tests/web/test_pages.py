"""The files of the pages, without a browser: what a visit loads."""

from __future__ import annotations

import gzip
import re

import pytest

from gavel.web.assets import FOLDER, INDEX

# Beside its modules, a page loads itself, the style and the icon.
OTHERS = 3
REQUESTS_MAX, SIZE_MAX = 20, 120_000
_STATIC = re.compile(r'^(?:import|export) [^;]*?from "\./(\w+\.js)";', re.MULTILINE)
_LATER = re.compile(r'import\("\./(\w+\.js)"\)')


def loaded(*modules: str) -> set[str]:
    """Return these modules and all that they import."""
    modules_loaded: set[str] = set()
    waiting = list(modules)
    while waiting:
        if (module := waiting.pop()) not in modules_loaded:
            modules_loaded.add(module)
            waiting += _STATIC.findall((FOLDER / module).read_text())
    return modules_loaded


PAGES = sorted(_LATER.findall((FOLDER / "app.js").read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_a_first_visit_of_any_page_makes_at_most_20_requests(page: str) -> None:
    """Modules that the page does not need, because the overview is loaded ahead, count as well."""
    ahead = set(re.findall(r"/assets/(\w+\.js)", (FOLDER / INDEX).read_text()))
    assert len(loaded("app.js", page) | ahead) + OTHERS <= REQUESTS_MAX


def test_all_files_together_have_at_most_120_kb_compressed() -> None:
    """They have no dependencies, so this is all there is."""
    assert sum(len(gzip.compress(path.read_bytes(), 6)) for path in FOLDER.iterdir()) <= SIZE_MAX


def test_the_modules_of_the_overview_are_loaded_at_once() -> None:
    """The first page names all its modules, so that none waits until another one has been read."""
    ahead = set(re.findall(r"/assets/(\w+\.js)", (FOLDER / INDEX).read_text()))
    assert ahead == loaded("app.js", "overview.js")
