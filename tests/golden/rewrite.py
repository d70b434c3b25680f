"""Rewrite the golden files; then read the diff.

python -m tests.golden.rewrite [NAME …]               play these transcripts again, or all of them
python -m tests.golden.rewrite --wording [TESTS …]    run these tests, or all that hand over messages
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.golden.play import played
from tests.support.wording import TESTS, WRITE

HERE = Path(__file__).parent


def rewrite(names: Sequence[str]) -> None:
    """Play these transcripts again, or all of them, and keep what comes out."""
    for path in sorted(HERE.glob("*.txt")):
        if not names or path.stem in names:
            old = path.read_text(encoding="utf-8")
            new = played(old)
            path.write_text(new, encoding="utf-8")
            print(f"{'unchanged' if new == old else 'CHANGED  '} {path.name}")


def rewrite_wording(paths: Sequence[str]) -> int:
    """Run these tests, or every module that uses `wording`, and keep the messages that they hand over."""
    modules = [
        str(path) for path in sorted(TESTS.rglob("test_*.py")) if "wording(" in path.read_text("utf-8")
    ]
    return pytest.main([WRITE, "-q", "-p", "no:cacheprovider", *(paths or modules)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--wording"]:
        raise SystemExit(rewrite_wording(sys.argv[2:]))
    rewrite(sys.argv[1:])
