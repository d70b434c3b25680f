"""One Chromium and one cluster for all tests of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import page_in, running_chromium
from tests.browser.site import Site, sign_in
from tests.e2e.cluster import Cluster
from tests.support.web import running_gateway

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Ask = Callable[..., Any]
ROUNDS = ("scheduler.round_s=5", "scheduler.solve_lead_s=1", "scheduler.plan_lead_s=0.5")


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A browser without pages."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A V100 on which jobs take turns, and two K80."""
    folder = tmp_path_factory.mktemp("pages")
    with (
        Cluster(folder, {"n1": "v100=1", "n2": "k80=2"}, ROUNDS) as cluster,
        running_gateway(cluster.address) as gateway,
    ):
        yield Site(cluster, gateway)


@pytest.fixture
def site(shared: Site) -> Site:
    """The cluster, with nothing left on it from the previous test."""
    shared.cluster.cleared()
    return shared


@pytest.fixture
def page(site: Site, chromium: Browser) -> Iterator[Page]:
    """A page that is signed in and shows the overview."""
    with page_in(chromium) as page:
        sign_in(page, site)
        yield page


@pytest.fixture(scope="package")
def blank(chromium: Browser) -> Iterator[Page]:
    """A page of a gateway whose scheduler is away: all it is used for are its modules."""
    with running_gateway("127.0.0.1:1") as gateway, page_in(chromium) as page:
        page.goto(f"http://127.0.0.1:{gateway.port}/login")
        yield page


@pytest.fixture
def ask(blank: Page) -> Ask:
    """Call a function of a module: `ask("table", "windowOf", 0, 320, 32, 100)`."""

    def call(module: str, name: str, *arguments: Any) -> Any:
        script = (
            "([module, name, values]) => import(`/assets/${module}.js`).then((all) => all[name](...values))"
        )
        return blank.evaluate(script, [module, name, list(arguments)])

    return call
