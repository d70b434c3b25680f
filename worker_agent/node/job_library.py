"""`gavel.training` for jobs: a directory that holds it and nothing else of ours, to stand first on their PYTHONPATH.

A job's environment need not have Gavel installed; where it has, the rest of that installation stays importable.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

_PACKAGE = "gavel"
_PART = "training"
_INIT = (
    '"""What a training script imports of Gavel, put here by the agent."""\n\n'
    "from pkgutil import extend_path\n\n"
    "__path__ = extend_path(__path__, __name__)\n"
)


class LibraryMissing(Exception):
    """This installation of Gavel has no `gavel.training`."""


def install(into: Path, package: Path | None = None) -> Path:
    """Make the directory, if it is not there yet, and return it. Jobs of older agents keep theirs."""
    source = (package or _installed()) / _PART
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    if not files:
        raise LibraryMissing(f"{source} is not there: this installation is incomplete, install Gavel again")
    digest = hashlib.sha256(_INIT.encode())
    for path in files:
        digest.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes() + b"\0")
    target = into / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    into.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=into))
    try:
        for path in files:
            copy = new / _PACKAGE / _PART / path.relative_to(source)
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        (new / _PACKAGE / "__init__.py").write_text(_INIT)
        # Jobs of other users read it.
        new.chmod(0o755)
        os.rename(new, target)
    except OSError:
        # Another agent may have been faster with the same content.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target


def _installed() -> Path:
    """Return the directory of our package, without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LibraryMissing(f"the package {_PACKAGE} is not installed beside the agent")
    return Path(next(iter(spec.submodule_search_locations)))
