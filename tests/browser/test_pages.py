"""The pages as users meet them: in Chromium, with a scheduler, two agents and a gateway, all of them real."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gavel.client import JobSpec, JobState
from tests.browser.chromium import needs_chromium, page_in
from tests.browser.site import PAGES, Site, counting, hides, reads, shows, sign_in
from tests.e2e.cluster import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

HOSTILE = '<img src=x onerror="document.title=1"></script>'


def test_a_job_file_is_submitted_watched_read_live_and_seen_to_end(
    site: Site, page: Page, tmp_path: Path
) -> None:
    """The page follows the job from its file to its last line, without being loaded again."""
    go = tmp_path / "go"
    script = f"echo first; while [ ! -e {go} ]; do sleep 0.1; done; echo second"
    (tmp_path / "job.yaml").write_text(f"name: from-a-file\nscript: '{script}'\nreports_steps: false\n")
    page.get_by_role("link", name="Queue").click()
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("dialog").locator("input[type=file]").set_input_files(tmp_path / "job.yaml")
    page.get_by_role("button", name="What would happen?").click()
    reads(page.get_by_role("dialog").get_by_role("status"), "v100")
    page.get_by_role("dialog").get_by_role("button", name="Submit").click()
    shows(page.get_by_role("heading", name="from-a-file"))
    shows(page.locator("h1 + .state.running"))
    output = page.get_by_role("log", name="Output")
    reads(output, "first")
    assert "second" not in (output.text_content() or "")
    reads(page.locator("pre.spec"), "from-a-file")
    go.touch()
    reads(output, "second")
    shows(page.locator("h1 + .state.completed"))


def test_jobs_are_chosen_in_the_queue_and_cancelled_after_a_list_of_them(
    site: Site, page: Page, tmp_path: Path
) -> None:
    """A filter in the address narrows the queue; the list before the command names exactly the chosen jobs."""
    chosen = [counting(site, tmp_path / "go", name=f"mine-{number}") for number in range(2)]
    other = counting(site, tmp_path / "go", name="other")
    page.goto(site.at("/queue?q=mine"))
    shows(page.get_by_role("link", name=chosen[1], exact=True))
    hides(page.get_by_role("link", name=other, exact=True))
    page.get_by_label("Choose all listed jobs").check()
    page.get_by_role("button", name="Cancel 2").click()
    concerned = page.get_by_role("dialog").get_by_role("listitem").all_text_contents()
    assert [text.split("mine")[0] for text in sorted(concerned)] == sorted(chosen)
    page.get_by_role("dialog").get_by_role("button", name="Cancel 2 jobs").click()
    for job in chosen:
        assert site.cluster.wait_until_ended(job).state is JobState.CANCELLED
        hides(page.get_by_role("link", name=job, exact=True))
    assert not site.cluster.job(other).state.is_final


def test_a_job_is_held_and_released_on_its_page(site: Site, page: Page, tmp_path: Path) -> None:
    """Each command is confirmed, and the page shows the new state by itself."""
    job = counting(site, tmp_path / "go")
    page.goto(site.at(f"/jobs/{job}"))
    shows(page.locator("h1 + .state.running"))
    page.get_by_role("button", name="Hold").click()
    page.get_by_role("dialog").get_by_role("button", name="Hold 1 job").click()
    shows(page.locator("h1 + .state.held"))
    page.get_by_role("button", name="Release").click()
    page.get_by_role("dialog").get_by_role("button", name="Release 1 job").click()
    shows(page.locator("h1 + .state.running"))


def test_the_queue_says_why_a_job_waits_and_who_holds_the_gpus(
    site: Site, page: Page, tmp_path: Path
) -> None:
    """The answer is the scheduler's explanation, with links to the jobs that it names."""
    holder = counting(site, tmp_path / "go", worker_types=("v100",), preemptible=False)
    site.cluster.wait_until_running(holder)
    waiting = counting(site, tmp_path / "go", worker_types=("v100",))
    page.goto(site.at("/queue"))
    page.get_by_role("button", name=f"Why does job {waiting} wait?").click()
    dialog = page.get_by_role("dialog")
    reads(dialog, "v100")
    shows(dialog.get_by_role("link", name=holder, exact=True))
    page.keyboard.press("Escape")
    hides(dialog)


def test_a_node_is_drained_and_resumed(site: Site, page: Page) -> None:
    """An operator does both on the node's page."""
    page.goto(site.at("/nodes"))
    page.get_by_role("link", name=re.compile("^n2, up")).click()
    page.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("its <b>fan</b>")
    page.get_by_role("dialog").get_by_role("button", name="Drain n2").click()
    shows(page.locator("h1 + .state.draining"))
    shows(page.get_by_text("its <b>fan</b>"))
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume n2").click()
    shows(page.locator("h1 + .state.up"))
    assert [node.state for node in site.cluster.client.nodes(["n2"])] == ["up"]


def test_the_policy_is_changed_and_a_wrong_one_is_refused_with_its_reason(site: Site, page: Page) -> None:
    """The dialog stays open with the scheduler's words until the policy works."""
    page.get_by_role("button", name="Change policy").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Policy").fill("no_such_policy")
    dialog.get_by_role("button", name="Change").click()
    reads(dialog.get_by_role("alert"), "no_such_policy")
    dialog.get_by_label("Policy").fill("fifo")
    dialog.get_by_role("button", name="Change").click()
    hides(dialog)
    reads(page.locator("dl.facts").first, "fifo")
    site.cluster.client.set_policy("max_min_fairness")


def test_hostile_names_and_output_are_text(site: Site, page: Page, tmp_path: Path) -> None:
    """Markup is shown as it was written, and no page gets an element of it."""
    printed = "import sys; sys.stdout.buffer.write(b'<b>bold</b> \\x1b[31mred\\x1b[0m \\xff\\x00<script>x</script>\\n')"
    spec = JobSpec(
        command=(sys.executable, "-c", printed), name=HOSTILE, job_type="<i>type</i>", reports_steps=False
    )
    ended = site.cluster.client.submit(spec)[0]
    site.cluster.wait_until_completed(ended)
    running = counting(site, tmp_path / "go", name=HOSTILE, job_type="<i>type</i>")
    site.cluster.wait_until_running(running)
    page.goto(site.at(f"/jobs/{ended}"))
    output = page.get_by_role("log", name="Output")
    reads(output, "<b>bold</b> red")
    reads(output, "<script>x</script>")
    reads(output.locator(".ansi-1"), "red")
    for path in (f"/jobs/{ended}", f"/jobs/{running}", *PAGES, "/use?by=job_type"):
        page.goto(site.at(path))
        shows(page.locator("main h1, main h2"))
        if path in ("/queue", f"/jobs/{ended}"):
            shows(page.get_by_text("<img src=x onerror="))
        assert page.locator("img, main script, main .log b, main i:has-text('type')").count() == 0
        assert "Gavel" in page.title()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(site: Site, chromium: Browser, tmp_path: Path, theme: str) -> None:
    """Each page, in this theme, meets the rules of axe-core."""
    from axe_playwright_python.sync_playwright import Axe

    job = counting(site, tmp_path / "go", name="long", worker_types=("v100",), tenant="vision")
    site.cluster.wait_until_running(job)
    counting(site, tmp_path / "go", worker_types=("v100",), tenant="language")
    eventually(site.cluster.client.matrix, "the matrix has a row")
    with page_in(chromium, color_scheme=theme) as page:
        sign_in(page, site)
        for path in (*PAGES, f"/jobs/{job}"):
            page.goto(site.at(path))
            shows(page.locator("main h2, main .scroller tbody tr"))
            violations = Axe().run(page).response["violations"]
            assert [(path, rule["id"], [node["html"] for node in rule["nodes"]]) for rule in violations] == []


def test_everything_is_reached_by_the_keyboard(site: Site, page: Page, tmp_path: Path) -> None:
    """From the overview to a cancelled job without a pointer; the focus returns to where it was."""
    job = counting(site, tmp_path / "go", name="by-hand")
    page.keyboard.press("g")
    page.keyboard.press("q")
    shows(page.get_by_role("link", name=job, exact=True))
    page.keyboard.press("/")
    page.keyboard.type("by-hand")
    assert "q=by-hand" in page.url
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent") == job:
            break
    page.keyboard.press("Enter")
    shows(page.get_by_role("heading", name="by-hand"))
    page.get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    hides(page.get_by_role("dialog"))
    assert page.evaluate("() => document.activeElement.textContent") == "Cancel"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Cancel 1 job").press("Enter")
    shows(page.locator("h1 + .state.cancelled"))


def test_the_matrix_and_its_table_show_the_same(site: Site, page: Page, tmp_path: Path) -> None:
    """Both have a row for each job; the view is in the address, and stays when the page is loaded again."""
    job = counting(site, tmp_path / "go", name="alone")
    site.cluster.wait_until_running(job)
    shows(page.locator(".matrix").get_by_role("link", name="alone"))
    assert page.locator(".matrix canvas").get_attribute("aria-label")
    page.get_by_role("button", name="Table").click()
    table = page.get_by_role("table", name="Matrix of jobs and GPU types")
    shows(table.get_by_role("link", name=f"{job} alone"))
    page.reload()
    reads(table, "v100: received of due")


def test_a_page_says_since_when_it_is_stale_and_recovers_by_itself(
    site: Site, page: Page, tmp_path: Path
) -> None:
    """The scheduler is killed and started again; the page keeps what it showed, and goes on with what is new."""
    job = counting(site, tmp_path / "go", name="before")
    site.cluster.wait_until_running(job)
    page.goto(site.at("/queue"))
    shows(page.get_by_role("link", name=job, exact=True))
    site.cluster.kill("scheduler")
    reads(page.locator(".pulse"), "Stale since")
    shows(page.get_by_role("link", name=job, exact=True))
    site.cluster.start_scheduler()
    hides(page.locator(".pulse.stale"))
    later = counting(site, tmp_path / "go", name="after")
    shows(page.get_by_role("link", name=later, exact=True))
    site.cluster.wait_until_linked("n1", "n2")


def test_signing_out_ends_the_session_and_the_code_begins_another(site: Site, page: Page) -> None:
    """Signed out, the page shows only the form; a wrong code is refused."""
    page.keyboard.press("?")
    page.get_by_role("button", name="Sign out", exact=True).click()
    form = page.get_by_label("Code")
    shows(form)
    page.reload()
    form.fill("0" * 32)
    page.keyboard.press("Enter")
    shows(page.get_by_role("alert").filter(has_text=re.compile(".")))
    form.fill(site.gateway.url)
    page.keyboard.press("Enter")
    shows(page.get_by_text("GPUs busy"))


def test_the_theme_is_turned_and_kept(page: Page) -> None:
    """The button turns light to dark, on this page and the next visit."""
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(21, 24, 29)"
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(232, 235, 239)"
    page.reload()
    shows(page.get_by_text("GPUs busy"))
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_a_quota_is_set_and_a_job_beyond_it_is_refused_with_the_numbers(site: Site, page: Page) -> None:
    """The dialog refuses what is no limit; a job file that asks for more is refused where it is written."""
    page.goto(site.at("/fairness"))
    page.get_by_role("button", name="Set a quota").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tenant, such").fill("limited")
    gpus = dialog.get_by_label("GPUs held at once", exact=True)
    gpus.fill("k80=many")
    dialog.get_by_role("button", name="Set", exact=True).click()
    reads(dialog.get_by_role("alert"), "k80=many")
    gpus.fill("*=1")
    dialog.get_by_role("button", name="Set", exact=True).click()
    hides(dialog)
    used = page.get_by_role("table", name="Used of the limits")
    shows(used.get_by_role("row", name="limited GPUs 0 of 1"))
    page.goto(site.at("/queue?submit=1"))
    dialog.get_by_label("Job file").last.fill("command: [sleep, '1']\ntenant: limited\ngpus: 2\n")
    dialog.get_by_role("button", name="Submit").click()
    reads(dialog.get_by_role("alert"), "limited")
    dialog.get_by_role("button", name="Back").click()
    assert not [job for job in site.cluster.client.list() if job.spec.tenant == "limited"]
    site.cluster.client.set_tenants(removed=["limited"])
