"""The picture of README and docs/web.md: the overview of a real cluster, taken by Chromium.

`python -m docs.web_picture` starts a scheduler, six agents with emulated GPUs and a gateway, submits 24 jobs of five
tenants, waits until they have taken turns for a while, and writes docs/images/web.png. It needs chromium and
Playwright.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client, JobSpec

PICTURE = Path(__file__).parent / "images" / "web.png"
AGENTS = (
    "h100=4:speed=1.0",
    *2 * ("a100=4:speed=0.6",),
    *2 * ("v100=4:speed=0.3",),
    "t4=4:speed=0.15",
)
ROUND_S = 10.0
ROUNDS = 12
# Tenant, name, GPUs, and steps per second on each type.
JOBS: tuple[tuple[str, str, int, dict[str, float]], ...] = (
    ("vision/detection", "resnet50", 1, {"h100": 9, "a100": 6, "v100": 3, "t4": 1.2}),
    ("vision/detection", "yolo-l", 2, {"h100": 8, "a100": 5, "v100": 2.2, "t4": 0.8}),
    ("vision/detection", "vit-b16", 4, {"h100": 7, "a100": 4.5, "v100": 1.4, "t4": 0.4}),
    ("vision/segmentation", "segformer", 2, {"h100": 6, "a100": 4, "v100": 1.8, "t4": 0.6}),
    ("language", "llama-7b-lora", 4, {"h100": 5, "a100": 2.6, "v100": 0.6}),
    ("language", "bert-base", 1, {"h100": 10, "a100": 7, "v100": 4, "t4": 2}),
    ("language", "gpt2-medium", 2, {"h100": 8, "a100": 4.6, "v100": 1.9, "t4": 0.5}),
    ("language", "t5-small", 1, {"h100": 9, "a100": 7.5, "v100": 5, "t4": 2.6}),
    ("ads", "dlrm", 1, {"h100": 4, "a100": 3.6, "v100": 3, "t4": 2.4}),
    ("ads", "dlrm-large", 4, {"h100": 4.4, "a100": 3.4, "v100": 2.4, "t4": 1.5}),
    ("rl", "ppo-atari", 1, {"h100": 3, "a100": 2.9, "v100": 2.7, "t4": 2.4}),
    ("rl", "muzero", 2, {"h100": 3.6, "a100": 3.1, "v100": 2.4, "t4": 1.6}),
)
# Steps that take as long as the rate on an H100 says, and longer on emulated GPUs that are slower.
TRAINING = """
import os, sys, time
from gavel.training import LeasedIterator

class Steps:
    path = os.path.join(os.environ["GAVEL_CHECKPOINT_DIR"], "step")
    def load(self):
        return int(open(self.path).read()) if os.path.exists(self.path) else 0
    def save(self, step):
        open(self.path + ".new", "w").write(str(step))
        os.replace(self.path + ".new", self.path)

for step in LeasedIterator(range(int(os.environ["GAVEL_STEPS"])), checkpoint=Steps(), every_s=2):
    time.sleep(float(sys.argv[1]) / float(os.environ["GAVEL_SPEED"]))
"""


def main() -> None:
    """Run the cluster, and take the picture."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        settings = (f"scheduler.round_s={ROUND_S}", "scheduler.solve_lead_s=2", "scheduler.plan_lead_s=1")
        with LocalCluster(folder, AGENTS, settings=settings, stop_s=5) as cluster:
            client = Client(cluster.address, retry_s=60)
            client.submit([spec for user in ("ada", "grace") for spec in jobs(user)])
            with gateway(cluster.address, folder) as url:
                time.sleep(ROUNDS * ROUND_S)
                take(url, PICTURE)


def jobs(user: str) -> Iterator[JobSpec]:
    """The jobs of a user, some minutes long."""
    for tenant, name, gpus, rates in JOBS:
        yield JobSpec(
            command=(sys.executable, "-c", TRAINING, str(1 / rates["h100"])),
            name=name,
            user=user,
            tenant=tenant,
            gpus=gpus,
            rates=rates,
            ranks="per_node",
            steps=1200 * rates["h100"],
        )


@contextmanager
def gateway(address: str, folder: Path) -> Iterator[str]:
    """Run `gavel web` for this scheduler; yield the address that signs in."""
    announced = folder / "web.json"
    options = ("--address", address, "--listen", "127.0.0.1:0", "--announce", str(announced))
    process = subprocess.Popen(
        [sys.executable, "-m", "gavel", "web", *options], stdout=subprocess.DEVNULL, env=os.environ
    )
    try:
        while not announced.exists():
            assert process.poll() is None, "gavel web did not start"
            time.sleep(0.1)
        yield json.loads(announced.read_text())["url"]
    finally:
        process.terminate()
        process.wait()


def take(url: str, path: Path) -> None:
    """Write the overview as a PNG of few colours."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, the sandbox of Chromium does not start.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        page.goto(url)
        page.locator(".matrix .rows a").first.wait_for()
        page.mouse.move(0, 0)
        page.screenshot(path=path, full_page=True)
        browser.close()
    with Image.open(path) as picture:
        few(picture.convert("RGB")).save(path, optimize=True)


def few(picture: Image.Image) -> Image.Image:
    """Return the picture with its 256 most frequent colours; the others are those of the edges of letters."""
    colours, counts = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_counts=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours[np.argsort(-counts)[:256]].ravel().tolist())
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
