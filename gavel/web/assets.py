"""The files of the pages, read at the start: a request names one of them, and never a path of this machine."""

from __future__ import annotations

from pathlib import Path

from gavel.client.errors import Invalid
from gavel.web.bodies import Content, content_now

FOLDER = Path(__file__).parent / "pages"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}


class Assets:
    """The files of a folder, by their path in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.suffix in TYPES and path.is_file() and not path.is_symlink()
        }
        if INDEX not in self._paths:
            raise Invalid(f"--pages {folder}: has no {INDEX}", field="pages")
        self._read: dict[str, tuple[int, Content]] = {}

    def get(self, name: str) -> Content | None:
        """Return a file, as it is now; None if there was none of this name at the start."""
        path = self._paths.get(name)
        if path is None:
            return None
        changed_ns = path.stat().st_mtime_ns
        if name not in self._read or self._read[name][0] != changed_ns:
            self._read[name] = changed_ns, content_now(path.read_bytes(), TYPES[path.suffix])
        return self._read[name][1]
