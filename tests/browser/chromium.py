"""Chromium, driven by Playwright; tests that need it are skipped, by name, where one of the two is missing."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.cluster import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((path for name in BROWSERS if (path := shutil.which(name))), None)
MISSING = [
    *([] if PROGRAM else ["chromium"]),
    *(name for name in ("playwright", "axe_playwright_python") if importlib.util.find_spec(name) is None),
]
needs_chromium = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
# A refused call and a lost stream are printed by the browser itself, not by the page.
BY_THE_BROWSER = "Failed to load resource"


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Run a browser. As root, its sandbox does not start."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, chromium_sandbox=False)
        yield browser
        browser.close()


@contextmanager
def page_in(browser: Browser, **options: Any) -> Iterator[Page]:
    """Open a page with cookies of its own. In the end it must have reported no error, and broken no security policy."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE_S * 1000)
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    context.set_default_timeout(PATIENCE_S * 1000)
    problems: list[str] = []

    def take(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(BY_THE_BROWSER):
            problems.append(message.text)

    page = context.new_page()
    page.on("console", take)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    context.close()
    assert not problems
