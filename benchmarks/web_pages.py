"""The pages in Chromium beside a scheduler with many jobs: first paint, the whole queue, scrolling, a change.

    python -m benchmarks.web_pages [--jobs 10000]

Chromium paints in software here, beside the scheduler and the gateway. It needs chromium and Playwright.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.priority import ask_for_priority
from benchmarks.web import SETTINGS, fill
from docs.web_picture import gateway
from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client

ROW = ".scroller tbody tr"
# Frames of scrolling, and how far each goes, in pixels.
FRAMES, STRIDE = 200, 400
LOADED = """() => {
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    const loads = performance.getEntriesByType("resource");
    const own = loads.filter((one) => one.name.includes("/assets/"));
    const queue = loads.find((one) => one.name.endsWith("/v1/queue"));
    const sum = (all) => all.reduce((total, one) => total + one.encodedBodySize, 0);
    return {
        first_paint_ms: paint.startTime, queue_ms: queue.responseEnd, queue_bytes: queue.encodedBodySize,
        assets: own.length + 1, asset_bytes: sum(own), nodes: document.querySelectorAll("*").length,
    };
}"""
SCROLL = """async ([frames, stride]) => {
    const box = document.querySelector(".scroller");
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    for (let frame = 0; frame < frames; frame++) {
        box.scrollTop += stride;
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    times.sort((a, b) => a - b);
    return { p50_ms: times[frames / 2], p95_ms: times[Math.floor(frames * 0.95)], most_ms: times.at(-1) };
}"""


def measure(url: str, client: Client, job: str) -> dict[str, Any]:
    """Open the queue in a new browser, scroll it, and change a job that it shows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.locator(".figure").first.wait_for()
        first = page.evaluate(LOADED)
        begin_s = time.perf_counter()
        page.goto(url.partition("/#")[0] + "/queue")
        page.locator(ROW).first.wait_for()
        rows_s = time.perf_counter() - begin_s
        # Frames right after the page was opened are those of opening it.
        time.sleep(2)
        figures = {
            "first_visit": first,
            "second_visit": page.evaluate(LOADED),
            "rows_ms": 1000 * rows_s,
            "scroll": page.evaluate(SCROLL, [FRAMES, STRIDE]),
        }
        figures["nodes"] = page.evaluate("() => document.querySelectorAll('*').length")
        page.get_by_role("searchbox").fill(f"id:{job}")
        page.locator(f"{ROW} .state.queued").wait_for()
        begin_s = time.perf_counter()
        client.hold(job)
        page.locator(f"{ROW} .state.held").wait_for()
        figures["change_ms"] = 1000 * (time.perf_counter() - begin_s)
        browser.close()
    return figures


def main() -> None:
    """Fill a scheduler, measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    jobs = parser.parse_args().jobs
    ask_for_priority()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalCluster(folder, [], settings=SETTINGS) as cluster:
            client = Client(cluster.address, retry_s=60)
            fill(client, jobs)
            with gateway(cluster.address, folder) as url:
                print(json.dumps(measure(url, client, "1"), indent=1))


if __name__ == "__main__":
    main()
