"""The page about the files of jobs: its commands print what it says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.transcripts import ROOT, follow, running


def test_its_commands(tmp_path: Path) -> None:
    """A job's outputs come back, and everything else of its work directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    with running(tmp_path / "up") as address:
        follow(ROOT / "docs/files.md", folder, GAVEL_ADDRESS=address)
