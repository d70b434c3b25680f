"""The queue as columns and its changes as events: what a page shows without asking the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gavel.client import Client, JobSpec
from gavel.web import callers, streams
from gavel.web.queue_rows import COLUMNS
from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.support.web import Browser, Event
from tests.web.conftest import Site

Rows = dict[str, tuple[Any, ...]]


def rows_of(columns: dict[str, list[Any]]) -> Rows:
    """Return columns as rows by job."""
    assert list(COLUMNS) == list(columns)
    (count,) = {len(column) for column in columns.values()}
    rows = list(zip(*columns.values(), strict=True))
    assert count == len(rows)
    return {row[0]: row for row in rows}


class Page:
    """The copy of the queue that a page keeps: fetched once, then changed by events."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.events: list[Event] = []
        self.fetch()

    def fetch(self) -> None:
        """Fetch the whole queue."""
        data = self._browser.get("/v1/queue").json
        self.position, self.rows = data["event"], rows_of(data["columns"])

    def take(self, event: Event) -> None:
        """Change the copy by an event."""
        self.events.append(event)
        if event.kind == "reset":
            self.fetch()
            return
        self.position = event.id
        if event.kind == "jobs":
            self.rows |= rows_of(event.data["rows"])
            for job in rows_of(event.data["gone"]):
                self.rows.pop(job, None)

    def follow(self, by_header: bool = False) -> Iterator[Event]:
        """Take and yield the events after the last one."""
        where = {"Last_Event_ID": self.position} if by_header else {}
        path = "/v1/events" if by_header else f"/v1/events?after={self.position}"
        with self._browser.events(path, **where) as events:
            for event in events:
                if event.kind != "open":
                    self.take(event)
                    yield event


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    """A client with all rights."""
    with Client(site.live.address, token=site.tokens[Role.ADMIN]) as client:
        yield client


def wait_for_jobs(page: Page, jobs: set[str]) -> None:
    """Follow the events until the page shows exactly these jobs."""
    if set(page.rows) != jobs:
        next(event for event in page.follow() if set(page.rows) == jobs)


def unfinished(client: Client) -> set[str]:
    """Return the ids of all unfinished jobs."""
    return {job.id for job in client.queue(all_users=True, limit=None)}


def test_the_queue_is_what_the_scheduler_has(site: Site, client: Client) -> None:
    """Columns of one length, each as the job has it; compressed where the browser can read that."""
    (job,) = client.submit(
        JobSpec(
            command=("x",),
            name="<img onerror=alert(1)>",
            gpus=2,
            tenant="org/a",
            weight=2.5,
            deadline_s=60,
        )
    )
    page = Page(site.browser(Role.VIEWER))
    wait_for_jobs(page, unfinished(client))
    row = dict(zip(COLUMNS, page.rows[job], strict=True))
    assert tuple(row[name] for name in ("name", "user", "tenant", "gpus", "weight")) == (
        "<img onerror=alert(1)>",
        "admin",
        "org/a",
        2,
        2.5,
    )
    submitted = client.get(job).submitted
    assert submitted is not None
    assert (int(submitted.timestamp()), 60) == (row["submitted"], row["deadline"] - row["submitted"])

    def is_known() -> bool:
        tag = site.browser(Role.VIEWER).get("/v1/queue").headers["etag"]
        return site.browser(Role.VIEWER).get("/v1/queue", If_None_Match=tag).status == 304

    # Between two requests, the scheduler may find out why the job waits.
    eventually(is_known, "the queue stays as it is")


def test_a_page_that_reconnects_after_every_event_misses_nothing(site: Site, client: Client) -> None:
    """Jobs come, change and go; a page that loses its connection after each event shows the same as a new one."""
    page = Page(site.browser(Role.USER))
    for number in range(4):
        (job,) = client.submit(JobSpec(command=("x",), name=f"job {number}"))
        ids = unfinished(client)
        while set(page.rows) != ids:
            next(page.follow(by_header=number % 2 == 0))
        client.hold(job)
        while page.rows[job][list(COLUMNS).index("state")] != "held":
            next(page.follow())
        client.cancel(job)
        while job in page.rows:
            next(page.follow())
    gone = [event.data["gone"] for event in page.events if event.kind == "jobs" and event.data["gone"]["id"]]
    assert [state for columns in gone for state in columns["state"]] == ["cancelled"] * 4
    names = [event.id for event in page.events]
    assert len(names) == len(set(names)), "an event came twice"
    assert page.rows == Page(site.browser(Role.USER)).rows


def test_an_event_that_is_not_known_begins_again(site: Site) -> None:
    """Of another gateway, or too old: the page is told to fetch the queue."""
    browser = site.browser(Role.VIEWER)
    for where in ("?after=deadbeef-5", "?after=nonsense"):
        with browser.events(f"/v1/events{where}") as events:
            assert next(events).kind == "reset"
    with browser.events("/v1/events", Last_Event_ID="deadbeef-5") as events:
        assert next(events).kind == "reset"


def test_the_overview_counts_the_queue(site: Site, client: Client) -> None:
    """States, GPUs that are waited for, and the oldest wait with its reason."""
    jobs = client.submit([JobSpec(command=("x",), name=f"o{number}", gpus=1) for number in range(5)])
    client.hold(jobs[4])
    browser = site.browser(Role.VIEWER)

    def overview() -> Any:
        data = browser.get("/v1/overview").json
        counts = Counter(job.state.value for job in client.queue(all_users=True, limit=None))
        is_current = counts == Counter(data["jobs"]) and data["oldest_wait"]
        return data if is_current else None

    data = eventually(overview, "the overview has all jobs")
    assert data["stale_since"] is None
    assert data["waiting_gpus"] >= 1
    assert {"job", "since", "reason", "text"} == set(data["oldest_wait"])
    assert data["status"]["gpus"] == 2
    assert "data_dir" not in data["status"]
    client.cancel(jobs[0])


def test_a_revoked_token_ends_the_stream(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is told why, and the stream ends, without any call by the page."""
    monkeypatch.setattr(streams, "CHECK_S", 0.05)
    monkeypatch.setattr(callers, "IDENTITY_S", 0.0)
    id_, secret = site.new_token(Role.VIEWER)
    with site.gateway.signed_in(secret).events("/v1/events") as events:
        assert next(events).kind == "open"
        site.revoke(id_)
        kinds = [event.kind for event in events]
    assert kinds[-1] == "signed_out"
