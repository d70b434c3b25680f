"""Public measurements and reference answers, read from a folder beside the project, never copied."""

from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PUBLIC_DATA = PROJECT.parent / "shared" / "data"


def public_data(relative: str) -> Path:
    """The path of a public data file, such as `reference/allocations.json`.

    If the file is absent, the calling test is skipped with a reason; at import time, the whole module.
    """
    path = PUBLIC_DATA / relative
    if not path.exists():
        pytest.skip(f"public data ../shared/data/{relative} is not on this machine", allow_module_level=True)
    return path
