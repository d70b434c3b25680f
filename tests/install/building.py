"""Build the distributions of this working tree, and lay out an environment that holds the base and nothing else."""

from __future__ import annotations

import compileall
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = ("gavel", "planner", "policies", "protos", "scheduler", "traces", "worker_agent")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
# -I and -S leave the standard library as the only place to import from.
RUN = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('gavel', run_name='__main__')"


def tracked_files(*folders: str) -> list[str]:
    """Return the files of the working tree that git tracks or would add, as paths from its root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in names.split("\0") if name and (ROOT / name).is_file())


def copy_tree(target: Path) -> Path:
    """Copy the files of a clone, so that no build output of this working tree gets into a distribution."""
    for name in tracked_files():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    return target


def build(source: Path, kind: str, into: Path) -> Path:
    """Build a distribution with the setuptools that is installed; `kind` is `wheel` or `sdist`."""
    into.mkdir()
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(path for path in into.iterdir() if path.name.endswith((".whl", ".tar.gz")))


def unpacked_sdist(archive: Path, into: Path) -> Path:
    """Unpack a source distribution and return its only folder."""
    with tarfile.open(archive) as file:
        file.extractall(into, filter="data")
    return next(into.iterdir())


def base_environment(wheel: Path, site: Path) -> Path:
    """Fill `site` with the wheel and with links to exactly the distributions that its base requires, compiled."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    own = Distribution.at(next(site.glob("*.dist-info")))
    for required in _closure(own):
        for file in required.files or ():
            if ".." not in file.parts:
                link = site / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(str(required.locate_file(file))))
    compileall.compile_dir(site, quiet=2)
    return site


def size_bytes(site: Path) -> int:
    """Return the size of everything in an environment, bytecode included."""
    return sum(path.stat().st_size for path in site.rglob("*") if path.is_file())


def run_gavel(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `gavel` with the packages in `site` instead of those that run the tests."""
    command = [sys.executable, "-I", "-S", "-c", RUN, str(site), *arguments]
    environment = {"HOME": str(site.parent), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=site.parent, env=environment
    )


def _closure(own: Distribution) -> list[Distribution]:
    """Return the distributions that `own` requires without extras, directly or through other distributions."""
    distributions: dict[str, Distribution] = {}
    waiting = [own]
    while waiting:
        for line in waiting.pop().requires or ():
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and requirement.name not in distributions:
                distributions[requirement.name] = distribution(requirement.name)
                waiting.append(distributions[requirement.name])
    return list(distributions.values())
