"""Clicks that come twice, links in dialogs, clicks into pictures, and small screens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gavel.client import JobSpec
from gavel.client import results as r
from tests.browser.chromium import needs_chromium, page_in
from tests.browser.site import PAGES, Site, counting, hides, reads, shows, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Response

pytestmark = needs_chromium


def test_a_second_click_opens_no_second_dialog_and_submits_no_second_job(
    site: Site, page: Page, tmp_path: Path
) -> None:
    """Neither while an answer is awaited, nor while a job is submitted."""
    waiting = counting(site, tmp_path / "go", name="clicked", worker_types=("v100",))
    site.cluster.client.hold(waiting)
    page.goto(site.at("/queue"))
    answers = []

    def second(response: Response) -> bool:
        answers.extend([response.url] if ":explain" in response.url else [])
        return len(answers) == 2

    with page.expect_response(second):
        page.get_by_role("button", name=f"Why does job {waiting} wait?").dblclick()
    dialog = page.get_by_role("dialog")
    shows(dialog)
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert dialog.count() == 1
    page.keyboard.press("Escape")
    hides(dialog)
    page.get_by_role("button", name="Submit").click()
    dialog.get_by_label("Job file").last.fill("name: twice\ncommand: [sleep, '60']\nreports_steps: false\n")
    dialog.get_by_role("button", name="Submit").dblclick()
    shows(page.get_by_role("heading", name="twice"))
    assert len([job for job in site.cluster.client.list() if job.spec.name == "twice"]) == 1


def test_a_link_in_a_dialog_leaves_the_dialog(site: Site, page: Page, tmp_path: Path) -> None:
    """The page of the job that holds the GPUs is shown, and nothing stands before it."""
    holder = counting(site, tmp_path / "go", name="holder", worker_types=("v100",), preemptible=False)
    site.cluster.wait_until_running(holder)
    waiting = counting(site, tmp_path / "go", worker_types=("v100",))
    page.goto(site.at("/queue"))
    page.get_by_role("button", name=f"Why does job {waiting} wait?").click()
    page.get_by_role("dialog").get_by_role("link", name=holder, exact=True).first.click()
    shows(page.get_by_role("heading", name="holder"))
    hides(page.get_by_role("dialog"))


def test_a_click_on_a_round_names_what_changed_and_why(site: Site, page: Page, tmp_path: Path) -> None:
    """By the button of the round or in the picture; the choice is in the address. A round may have changed nothing."""
    job = counting(site, tmp_path / "go", worker_types=("v100",))
    site.cluster.wait_until_running(job)
    number = site.cluster.client.timeline(job)[0].round
    page.goto(site.at("/rounds"))
    page.get_by_role("button", name=f"What changed in round {number}", exact=True).click()
    changes = page.get_by_role("table", name=f"What changed in round {number}")
    shows(changes.get_by_role("link", name=job, exact=True))
    reads(changes, "began")
    page.reload()
    shows(changes.get_by_role("link", name=job, exact=True))
    page.get_by_role("button", name="Close").click()
    hides(changes)
    page.locator(".canvas canvas").click(position={"x": 700, "y": 10})
    section = page.get_by_role("region", name=re.compile(r"^What changed in round \d+$"))
    shows(section)
    opened = (section.get_attribute("aria-label") or "").rpartition(" ")[2]
    assert f"round={opened}" in page.url


def test_the_page_of_rounds_says_which_turns_it_leaves_out(site: Site, page: Page, tmp_path: Path) -> None:
    """Beside the picture, and where a chosen round may have ended such a turn; here the page gets one turn only."""
    (tmp_path / "go").touch()
    for _ in range(2):
        job = counting(site, tmp_path / "go")
        site.cluster.wait_until_completed(job)
    page.route(
        "**/v1/leases?*",
        lambda route: route.continue_(url=re.sub(r"page_size=\d+", "page_size=1", route.request.url)),
    )
    page.goto(site.at("/rounds"))
    shows(page.get_by_text(re.compile("^the latest 2,000 turns, which ended after [0-9:]+$")))
    page.get_by_role("button", name=re.compile("^What changed in round")).last.click()
    shows(page.get_by_text(re.compile("^Turns that ended by [0-9:]+ are not here")))


def test_an_error_stands_below_its_field(site: Site, page: Page) -> None:
    """Whether the page or the scheduler refuses it, the field has the focus and names the reason."""
    page.goto(site.at("/fairness"))
    page.get_by_role("button", name="Set a quota").click()
    dialog = page.get_by_role("dialog")
    users = dialog.get_by_label("GPUs held at once, each user")
    dialog.get_by_label("Tenant, such").fill("refused")
    users.fill("k80=many")
    dialog.get_by_role("button", name="Set", exact=True).click()
    is_blamed(users, "k80=many")
    users.fill("")
    gpus = dialog.get_by_label("GPUs held at once", exact=True)
    gpus.fill("k90=1")
    dialog.get_by_role("button", name="Set", exact=True).click()
    is_blamed(gpus, "k90")
    assert users.get_attribute("aria-invalid") is None
    assert [tenant for tenant in site.cluster.client.tenants() if tenant.name == "refused"] == []


def test_all_limits_of_a_tenant_are_set_read_and_removed(site: Site, page: Page) -> None:
    """The dialog has what `gavel tenant set` has; what it does not change stays, and an empty field lifts a limit."""
    before = r.Quota(gpus={"*": 2}, gpu_hours={"day": 24.0}, beyond="backfill", jobs_running=3)
    site.cluster.client.set_tenants(r.Tenant("spender", policy="fifo", quota=before))
    page.goto(site.at("/fairness"))
    used = page.get_by_role("table", name="Used of the limits")
    for row in ("GPUs 0 of 2", "running jobs 0 of 3", "GPU-hours a day 0 of 24 0"):
        shows(used.get_by_role("row", name=f"spender {row}"))
    reads(used.get_by_role("row", name="GPU-hours a day"), "UTC")
    page.get_by_role("button", name="Set the quota of spender").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("GPU-hours", exact=True).fill("day=24, year=500")
    dialog.get_by_role("button", name="Set", exact=True).click()
    is_blamed(dialog.get_by_label("GPU-hours", exact=True), "year=500")
    for label, text in {
        "GPU-hours": "day=24, week=1e2",
        "Cost": "month=99.5",
        "Jobs that run at once": "",
        "Unfinished jobs, each user": "7",
        "GPU-hours, each user": "day=2.5",
    }.items():
        dialog.get_by_label(label, exact=True).fill(text)
    dialog.get_by_role("button", name="Set", exact=True).click()
    hides(dialog)
    reads(used, "cost a month")
    (tenant,) = site.cluster.client.tenants(["spender"])
    assert tenant.quota == r.Quota(
        gpus={"*": 2}, gpu_hours={"day": 24.0, "week": 100.0}, cost={"month": 99.5}, beyond="backfill"
    )
    assert tenant.each_user == r.Quota(gpu_hours={"day": 2.5}, jobs_unfinished=7)
    assert tenant.policy == "fifo"
    page.get_by_role("button", name="Remove the quota of spender").click()
    dialog.get_by_role("button", name="Remove").click()
    hides(page.get_by_role("row", name=re.compile("^spender")))
    assert [tenant for tenant in site.cluster.client.tenants() if tenant.declared] == []


def is_blamed(field: Locator, text: str) -> None:
    """Wait until the error of a dialog is that of this field, and contains the text."""
    from playwright.sync_api import expect

    expect(field).to_be_focused()
    expect(field).to_have_accessible_description(re.compile(re.escape(text)))
    below = field.locator("xpath=following::*[1]")
    reads(below, text)


def test_any_number_of_tabs_of_one_browser_work(site: Site, chromium: Browser, tmp_path: Path) -> None:
    """A hidden tab holds no connection, of which a browser has six; shown again, it goes on where it was."""
    go = tmp_path / "go"
    script = f"echo first; while [ ! -e {go} ]; do sleep 0.1; done; echo second"
    spec = JobSpec(
        command=("sh", "-c", script),
        name="watched",
        reports_steps=False,
        preemptible=False,
        worker_types=("v100",),
    )
    (job,) = site.cluster.client.submit(spec)
    with page_in(chromium) as first:
        sign_in(first, site)
        tabs = [first, *(first.context.new_page() for _ in range(7))]
        for tab in tabs:
            tab.goto(site.at(f"/jobs/{job}"))
            reads(tab.get_by_role("log", name="Output"), "first")
            hide(tab)
        go.touch()
        site.cluster.wait_until_completed(job)
        later = counting(site, tmp_path / "never", name="later")
        assert not first.get_by_text("second", exact=True).count()
        show(first)
        reads(first.get_by_role("log", name="Output"), "second")
        shows(first.locator("h1 + .state.completed"))
        assert first.locator(".log .line").all_text_contents() == ["first", "second"]
        first.get_by_role("link", name="Queue").click()
        shows(first.get_by_role("link", name=later, exact=True))


def hide(tab: Page) -> None:
    """Tell a page that it is hidden. Chromium without a screen shows all pages at once."""
    tab.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { value: true, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )


def show(tab: Page) -> None:
    """Tell a page that it is shown again."""
    tab.evaluate('() => { delete document.hidden; document.dispatchEvent(new Event("visibilitychange")); }')


def test_all_pages_are_in_reach_on_a_small_screen(site: Site, chromium: Browser) -> None:
    """At 390 pixels the tabs stand beside each other, and no page is wider than the screen."""
    with page_in(chromium, viewport={"width": 390, "height": 844}) as page:
        sign_in(page, site)
        for path in PAGES:
            page.goto(site.at(path))
            shows(page.locator("main h2, main .scroller"))
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        box = page.get_by_role("link", name="Use", exact=True).bounding_box()
        assert box
        assert box["x"] + box["width"] <= 390
