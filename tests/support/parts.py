"""Programs and packages of others that some tests start: real parts, such as Prometheus and a browser.

`make parts` installs those that are missing. Tests that need one are skipped by name without it:

    pytestmark = needs("prometheus", "prometheus-alertmanager")
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The Debian package of each program.
PROGRAMS = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "chromium": "chromium",
}
# Modules of the extra `parts`.
MODULES = ("playwright", "axe_playwright_python")
# Debian starts these after it has installed them. Tests start their own.
SERVICES = ("prometheus", "prometheus-alertmanager")


def missing(*names: str) -> list[str]:
    """Return those of these programs and modules that are not installed."""
    return [
        name
        for name in names
        if (shutil.which(name) if name in PROGRAMS else importlib.util.find_spec(name)) is None
    ]


def needs(*names: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests unless these programs and modules are installed."""
    lacking = missing(*names)
    return pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}: `make parts`")


def commands(lacking: Sequence[str], *, is_root: bool) -> Iterator[list[str]]:
    """Yield the commands that install what is lacking."""
    packages = list(dict.fromkeys(PROGRAMS[name] for name in lacking if name in PROGRAMS))
    if packages:
        apt = [*([] if is_root else ["sudo"]), *("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q")]
        yield [*apt, "update"]
        yield [*apt, "install", "--yes", "--no-install-recommends", *packages]
    if set(lacking) & set(MODULES):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        yield [*pip, "-c", "constraints.txt", "-e", ".[parts]"]


def main() -> int:
    """Install what is missing, and report what was done."""
    lacking = missing(*PROGRAMS, *MODULES)
    if not lacking:
        print(f"parts: all there: {', '.join((*PROGRAMS, *MODULES))}")
        return 0
    print(f"parts: missing: {', '.join(lacking)}")
    if any(name in PROGRAMS for name in lacking) and shutil.which("apt-get") is None:
        print("error: the programs are installed from Debian packages; elsewhere, install them yourself")
        return 1
    for command in commands(lacking, is_root=os.geteuid() == 0):
        print(f"parts: {shlex.join(command)}", flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return 1
    importlib.invalidate_caches()
    if lacking := missing(*lacking):
        print(f"error: still missing: {', '.join(lacking)}")
        return 1
    print(f"parts: done. If Debian started its own services: systemctl disable --now {' '.join(SERVICES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
