"""Samples that a probe with cached data keeps: they are read once, and then come from memory.

Without it, reading that no page cache serves, as over a network, would count as preparation. The samples are files, so
that all workers of a loader share them; they were just written, so the page cache has them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

# The directory of the samples, while there is a probe that keeps them.
DIRECTORY = "GAVEL_PROBE_KEPT"


def kept(index: Any, fetch: Callable[[Any], Any]) -> Any:
    """Return `fetch(index)`; in a probe with cached data, as it was when it was first read. Only bytes are kept."""
    directory = os.environ.get(DIRECTORY)
    if directory is None or not isinstance(index, int):
        return fetch(index)
    path = f"{directory}/{index}"
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    raw = fetch(index)
    if isinstance(raw, bytes):
        aside = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            with open(aside, "wb") as file:
                file.write(raw)
            os.replace(aside, path)
    return raw
