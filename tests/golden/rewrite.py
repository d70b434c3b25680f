"""python -m tests.golden.rewrite [NAME …]: play every transcript again and keep what comes out. Read the diff."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.golden.play import played

HERE = Path(__file__).parent


def rewrite(names: list[str]) -> None:
    """These transcripts, or all of them."""
    for path in sorted(HERE.glob("*.txt")):
        if not names or path.stem in names:
            old = path.read_text(encoding="utf-8")
            new = played(old)
            path.write_text(new, encoding="utf-8")
            print(f"{'unchanged' if new == old else 'CHANGED  '} {path.name}")


if __name__ == "__main__":
    rewrite(sys.argv[1:])
