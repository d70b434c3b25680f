"""One Chromium for all tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import running_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A browser without pages."""
    with running_chromium() as browser:
        yield browser
