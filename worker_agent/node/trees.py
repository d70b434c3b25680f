"""Remove directories of jobs, however deep they are nested."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def remove_tree(path: Path | str, folder: int | None = None) -> None:
    """Remove a file or directory as far as possible; follow no link. `folder`: the open directory where it is."""
    # Python's own function opens a descriptor and calls itself for each level, until one of both is used up.
    within = None if folder is None else f"/proc/{os.getpid()}/fd/{folder}"
    subprocess.run(["rm", "-rf", "--", path], cwd=within, stderr=subprocess.DEVNULL, check=False)
