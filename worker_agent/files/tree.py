"""The files below a directory, whose owner may be hostile and change them at any moment.

Standard library only. Every component of a path is opened by itself, relative to the directory before it and never
through a link. A link is followed by opening the components of its target in the same way, so no path leads out of the
directory, whatever is renamed meanwhile. Only regular files are opened, and no open waits for a pipe.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from protos.gavel.v1.limits import PATH_CHARS_MAX

# How many links are followed in one path, and how deep directories are searched.
LINKS_MAX, DEPTH_MAX = 40, 100
FILES_MAX, NOTICES_MAX = 1_000_000, 100
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LeftOut(Exception):
    """A file is left out; the message has the reason."""


class Found(NamedTuple):
    """A regular file, or a link to one: its path below the directory, and its status."""

    path: str
    status: os.stat_result
    is_link: bool


def open_below(root: int, path: str) -> int:
    """Return a descriptor of a regular file or a directory below `root`. Raises LeftOut or OSError."""
    folders = [os.dup(root)]
    names, links = path.split("/")[::-1], 0
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                os.close(folders.pop())
                if not folders:
                    raise LeftOut("is a link that leads out of the directory")
                continue
            mode = os.stat(name, dir_fd=folders[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                names += _target(name, folders[-1], links).split("/")[::-1]
            elif stat.S_ISDIR(mode):
                folders.append(os.open(name, _DIRECTORY, dir_fd=folders[-1]))
            elif names:
                raise LeftOut("leads through something that is not a directory")
            else:
                return _open_file(name, folders[-1])
        return folders.pop()
    finally:
        for folder in folders:
            os.close(folder)


def _target(name: str, folder: int, links: int) -> str:
    """Return the target of a link, the last of `links` in a path."""
    target = os.readlink(name, dir_fd=folder)
    if target.startswith("/"):
        raise LeftOut("is a link that leads out of the directory")
    if links > LINKS_MAX:
        raise LeftOut("is a chain of too many links")
    return target


def _open_file(name: str, folder: int) -> int:
    fd = os.open(name, _FILE, dir_fd=folder)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise LeftOut(f"is {kind_of(mode)}")
    return fd


def kind_of(mode: int) -> str:
    """Return what something is that is not a regular file, for a message."""
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
    return kinds.get(stat.S_IFMT(mode), "a device")


class Search:
    """A search for files below a directory."""

    def __init__(self, root: int) -> None:
        self._root = root
        # What is left out and why, up to NOTICES_MAX lines, and how many lines more there would be.
        self.notices: dict[str, None] = {}
        self.notices_more = 0
        # The patterns that match no file.
        self.unmatched: list[str] = []
        # For the present pattern: the directories in which `**` was reached, with the number of components from there.
        self._reached: set[tuple[str, int]] = set()

    def find(self, patterns: Iterable[str]) -> Iterator[Found]:
        """Yield the files that match a pattern, and all files in the directories that match one, each file once.

        In each component, `*` and `?` match as in a shell; the component `**` matches any number of directories.
        """
        paths: set[str] = set()
        for pattern in patterns:
            is_matched, self._reached = False, set()
            for file in self._below(self._root, "", _components(pattern)):
                is_matched = True
                if file.path not in paths:
                    paths.add(file.path)
                    yield file
                if len(paths) > FILES_MAX:
                    raise LeftOut(f"there are more than {FILES_MAX:,} files: name some of them")
            if not is_matched:
                self.unmatched.append(pattern)

    def _below(self, folder: int, prefix: str, parts: list[str]) -> Iterator[Found]:
        """Yield the files below a directory that match the components of a pattern; without components, all."""
        if parts[:1] == ["**"] and len(parts) > 1:
            # Several `**` reach a directory in more ways than can be tried.
            if (prefix, len(parts)) in self._reached:
                return
            self._reached.add((prefix, len(parts)))
            yield from self._below(folder, prefix, parts[1:])
            for name, mode in self._entries(folder, prefix, "*"):
                if stat.S_ISDIR(mode):
                    yield from self._enter(folder, prefix, name, parts)
            return
        pattern = None if parts in ([], ["**"]) else parts[0]
        for name, mode in self._entries(folder, prefix, pattern):
            if stat.S_ISDIR(mode):
                yield from self._enter(folder, prefix, name, parts[1:])
            elif len(parts) < 2 and (file := self._look_at(folder, prefix + name, name)) is not None:
                yield file

    def _entries(self, folder: int, prefix: str, pattern: str | None) -> list[tuple[str, int]]:
        """Return names and modes in a directory, in the order of the names; None matches all names."""
        if pattern is not None and not any(character in pattern for character in "*?["):
            names = [pattern]
        else:
            names = sorted(os.listdir(folder))
        entries = []
        for name in names:
            if pattern not in (None, name) and not _matches(name, pattern or ""):
                continue
            try:
                entries.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))
            except OSError as error:
                if pattern != name:
                    self._leave_out(prefix + name, _reason(error))
        return entries

    def _enter(self, folder: int, prefix: str, name: str, parts: list[str]) -> Iterator[Found]:
        path = f"{prefix}{name}/"
        if path.count("/") > DEPTH_MAX:
            self._leave_out(path, f"is more than {DEPTH_MAX} directories deep")
            return
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=folder)
        except OSError as error:
            self._leave_out(path, _reason(error))
            return
        try:
            yield from self._below(inner, path, parts)
        finally:
            os.close(inner)

    def _look_at(self, folder: int, path: str, name: str) -> Found | None:
        """Return a file; None for anything else, which is left out."""
        try:
            path.encode()
            if len(path) > PATH_CHARS_MAX:
                raise LeftOut(f"has a path of more than {PATH_CHARS_MAX:,} characters")
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                return Found(path, status, is_link=False)
            if not stat.S_ISLNK(status.st_mode):
                raise LeftOut(f"is {kind_of(status.st_mode)}")
            return Found(path, self._status_behind(path), is_link=True)
        except UnicodeEncodeError:
            self._leave_out(path, "has a name that is not UTF-8")
        except LeftOut as why:
            self._leave_out(path, str(why))
        except OSError as error:
            self._leave_out(path, _reason(error))
        return None

    def _status_behind(self, link: str) -> os.stat_result:
        fd = open_below(self._root, link)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        if stat.S_ISDIR(status.st_mode):
            raise LeftOut("is a link to a directory")
        return status

    def _leave_out(self, path: str, why: str) -> None:
        notice = f"{path.encode(errors='backslashreplace').decode()} {why}"
        if len(self.notices) < NOTICES_MAX:
            self.notices[notice] = None
        elif notice not in self.notices:
            self.notices_more += 1


def _components(pattern: str) -> list[str]:
    """Return the components of a pattern, with one `**` in place of several in succession."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if part not in ("", ".") and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    return parts


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a component of a pattern; a leading dot is matched only by a dot."""
    return fnmatch.fnmatchcase(name, pattern) and (pattern[:1] == "." or name[:1] != ".")


def _reason(error: OSError) -> str:
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
