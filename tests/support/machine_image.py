"""A folder with an image of a container, made from the files of this machine: a shell, some commands and Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

# Where the image has its Python; the machine has none there.
PYTHON = "/of/the/image"
_COMMANDS = ("sh", "cat", "ls", "id", "sleep", "true")
# Large parts of the standard library that no job of the tests needs.
_LEFT_OUT = (
    "test",
    "site-packages",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "__pycache__",
    "config-*",
)


def make_image(folder: Path) -> Path:
    """Make an image in a folder, with Charliecloud's file of its variables, and return the folder."""
    for name in ("dev", "proc", "sys", "tmp", "etc", "bin", "ch"):
        (folder / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    for name in _COMMANDS:
        shutil.copy(str(shutil.which(name)), folder / "bin" / name)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix, library = folder / PYTHON.strip("/"), Path(sysconfig.get_path("stdlib"))
    shutil.copytree(
        library, prefix / "lib" / version, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True
    )
    (prefix / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), prefix / "bin" / "python3")
    extensions = (prefix / "lib" / version / "lib-dynload").glob("*.so")
    for path in _libraries(
        folder / "bin" / "sh", *(folder / "bin" / name for name in _COMMANDS), *extensions
    ):
        _copy_library(path, folder)
    for path in _libraries(prefix / "bin" / "python3"):
        _copy_library(path, folder)
    (folder / "ch" / "environment").write_text(f"PATH={PYTHON}/bin:/bin\nFROM_IMAGE=yes\n")
    return folder


def _libraries(*programs: Path) -> Iterable[str]:
    """Return the paths of the shared libraries that programs need."""
    listing = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    # Threads need this library when they end, and no program names it.
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return {*re.findall(r"(/[^ :]+)\s\(0x", listing), *re.findall(r"(/\S+/libgcc_s\.so\.1)\b", known)}


def _copy_library(path: str, folder: Path) -> None:
    target = folder / path.lstrip("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
