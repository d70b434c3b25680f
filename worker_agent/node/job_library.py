"""A copy of `gavel.training` for jobs: a directory without the rest of Gavel, put first on their PYTHONPATH.

So Gavel need not be installed in a job's environment. If Gavel is installed there, its other modules stay importable.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

_PACKAGE = "gavel"
_SUBPACKAGE = "training"
_INIT = (
    '"""The part of Gavel for training scripts, put here by the agent."""\n\n'
    "from pkgutil import extend_path\n\n"
    "__path__ = extend_path(__path__, __name__)\n"
)


class LibraryMissing(Exception):
    """This installation of Gavel has no `gavel.training`."""


def install(into: Path, package: Path | None = None) -> Path:
    """Copy `gavel.training` to a directory below `into`, unless it exists, and return that directory.

    The directory's name depends on the content, so jobs that an older agent started keep their version.
    """
    source = (package or _installed()) / _SUBPACKAGE
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    if not files:
        raise LibraryMissing(f"{source} does not exist: this installation is incomplete, install Gavel again")
    digest = hashlib.sha256(_INIT.encode())
    for path in files:
        digest.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes() + b"\0")
    target = into / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    into.mkdir(mode=0o755, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix="new-", dir=into))
    try:
        for path in files:
            copy = staging / _PACKAGE / _SUBPACKAGE / path.relative_to(source)
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        (staging / _PACKAGE / "__init__.py").write_text(_INIT)
        # Jobs of other users must be able to read the directory.
        staging.chmod(0o755)
        os.rename(staging, target)
    except OSError:
        # Another agent may have made the same directory meanwhile.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _installed() -> Path:
    """Return the directory of our package, without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LibraryMissing(f"the package {_PACKAGE} is not installed beside the agent")
    return Path(next(iter(spec.submodule_search_locations)))
