"""A cluster with its pages, and what tests wait for on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.cluster import Cluster
from tests.support.web import Gateway

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PAGES = (
    "/",
    "/?view=table",
    "/queue",
    "/nodes",
    "/nodes/n1",
    "/rounds",
    "/rounds?view=table",
    "/fairness",
    "/use",
)


class Site(NamedTuple):
    """A cluster, its gateway, and the address that signs in."""

    cluster: Cluster
    gateway: Gateway

    def at(self, path: str) -> str:
        """The address of a page."""
        return f"http://127.0.0.1:{self.gateway.port}{path}"


def sign_in(page: Page, site: Site) -> None:
    """Sign in with the code, and wait for the overview."""
    page.goto(site.gateway.url)
    shows(page.get_by_text("GPUs busy"))


def shows(locator: Locator) -> None:
    """Wait until this is visible."""
    from playwright.sync_api import expect

    expect(locator.first).to_be_visible()


def hides(locator: Locator) -> None:
    """Wait until this is gone."""
    from playwright.sync_api import expect

    expect(locator).to_have_count(0)


def reads(locator: Locator, text: str) -> None:
    """Wait until this contains the text."""
    from playwright.sync_api import expect

    expect(locator).to_contain_text(text)


def counting(site: Site, go: Path, **fields: object) -> str:
    """Submit a job that runs until the file exists."""
    return site.cluster.submit("counting.py", go, steps=100_000, **fields)
