"""Back up a data directory to one file, and restore it.

If a daemon is running, the daemon makes the backup, because no other program may read its journal.

The archive is a compressed tar file: first `manifest.json`, with the checksum of every other file, then those files.
Each database is copied in a consistent state. The archive includes keys, so only its owner can read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tarfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from scheduler.journal.errors import JournalError
from scheduler.journal.lock import lock_path
from scheduler.journal.store import SqliteJournal

FORMAT = 1
MANIFEST, JOURNAL, HISTORY = "manifest.json", "journal.db", "history.db"
DATABASES = ("access.db", "usage.db", "attempts.db", HISTORY)
# How long to wait for a database that is locked.
BUSY_S = 10.0
CONFIG = "gavel.toml"
FILES = (CONFIG, "settings.json", "rates.json")
FOLDERS = ("tls",)
# This file marks a restored directory, in which the records after the backup are lost (docs/journal-format.md).
RESTORED = "restored.json"


class BackupError(Exception):
    """A backup or a restore failed. The message is one line with the reason and, if there is one, the remedy."""


class Backup(NamedTuple):
    """The contents of an archive."""

    made_s: float
    version: str
    # The number of the last record of the journal.
    records: int
    # The SHA-256 of each file, by its name.
    files: dict[str, str]
    size_bytes: int
    # The old data_dir in gavel.toml, if `restore` changed it.
    data_dir_was: str = ""


def backup(
    folder: Path,
    archive: Path,
    version: str,
    *,
    packages: bool = False,
    journal: SqliteJournal | None = None,
) -> Backup:
    """Write the archive. An older file of that name is replaced only when the archive is safe on disk.

    `journal`: the daemon's open journal, if the daemon makes the backup.
    """
    if not (folder / JOURNAL).is_file():
        raise BackupError(f"there is no {JOURNAL} in {folder}: name the data directory of a scheduler")
    unfinished = archive.with_name(archive.name + ".part")
    try:
        with TemporaryDirectory(prefix="backup-", dir=archive.parent) as copies:
            copy = Path(copies)
            names = list(_copy_files(folder, copy, packages, journal))
            records = _last_record(copy / JOURNAL)
            sums = {name: _sha256(copy / name) for name in names}
            manifest = {
                "format": FORMAT,
                "made_s": time.time(),
                "version": version,
                "records": records,
                "files": sums,
            }
            _write(copy / MANIFEST, json.dumps(manifest, indent=1).encode())
            fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as tar:
                    for name in (MANIFEST, *names):
                        tar.add(copy / name, name, recursive=False, filter=_without_owner)
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(archive)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise BackupError(f"cannot write {archive}: {(error.strerror or str(error)).lower()}") from None
    return Backup(manifest["made_s"], version, records, sums, archive.stat().st_size)  # type: ignore[arg-type]


def restore(archive: Path, folder: Path) -> Backup:
    """Restore the data directory from the archive: completely, or not at all if anything fails."""
    if folder.exists() and any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty: move it away first, or name another data directory")
    unfinished = folder.with_name(folder.name + ".restoring")
    try:
        unfinished.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise BackupError(f"{unfinished} exists: delete it; an interrupted restore left it") from None
    except OSError as error:
        raise BackupError(f"cannot make {unfinished}: {(error.strerror or str(error)).lower()}") from None
    try:
        restored = _unpack(archive, unfinished)
        restored = restored._replace(data_dir_was=_point_to(folder, unfinished / CONFIG))
        _write(unfinished / RESTORED, json.dumps({"made_s": restored.made_s, "at_s": time.time()}).encode())
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except BaseException as error:
        shutil.rmtree(unfinished)
        if isinstance(error, OSError | EOFError | tarfile.TarError):
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise BackupError(f"cannot restore {archive}: {why.lower()}") from None
        raise
    return restored


def _point_to(folder: Path, config: Path) -> str:
    """Set data_dir in a config file to this directory. Return the old value, or "" if nothing had to change.

    Without this change, a scheduler that is started with the restored file would use the old directory.
    """
    if not config.is_file():
        return ""
    text = config.read_text("utf-8-sig")
    old, new = _data_dir(text), str(folder.absolute())
    if not old or Path(old).expanduser().absolute() == Path(new):
        return ""
    text = re.sub(
        r"^\s*data_dir\s*=.*$", lambda _: f"data_dir = {json.dumps(new)}", text, count=1, flags=re.M
    )
    if _data_dir(text) != new:
        raise BackupError(
            f"gavel.toml in the backup sets data_dir to {old}, and restore cannot change that line"
        )
    _write(config, text.encode())
    return old


def _data_dir(text: str) -> str:
    try:
        return str(tomllib.loads(text).get("data_dir", ""))
    except tomllib.TOMLDecodeError:
        # No scheduler starts with such a file, so none uses the wrong directory.
        return ""


def _unpack(archive: Path, folder: Path) -> Backup:
    with tarfile.open(archive, "r:gz") as tar:
        first = tar.next()
        if first is None or first.name != MANIFEST or first.size > 2**24:
            raise BackupError(f"{archive} is not a backup of a scheduler: it does not begin with a manifest")
        manifest = _manifest(archive, _content(tar, first))
        sums: dict[str, str] = manifest["files"]
        missing = set(sums)
        while (member := tar.next()) is not None:
            if not member.isfile() or member.name not in missing or not _is_plain(member.name):
                raise BackupError(
                    f"{archive} contains '{member.name}', which is not in its manifest: it was altered"
                )
            target = folder / member.name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _extract(tar, member, target) != sums[member.name]:
                raise BackupError(f"{archive}: {member.name} is damaged; use another backup")
            missing.discard(member.name)
    if missing:
        raise BackupError(f"{archive} is cut off: {sorted(missing)[0]} is missing; use another backup")
    return Backup(manifest["made_s"], manifest["version"], manifest["records"], sums, archive.stat().st_size)


def _manifest(archive: Path, content: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(content)
        if manifest["format"] > FORMAT:
            raise BackupError(
                f"{archive} was made by a newer Gavel ({manifest['version']}): restore it with that"
            )
        if not (
            isinstance(manifest["files"], dict)
            and JOURNAL in manifest["files"]
            and isinstance(manifest["records"], int)
            and isinstance(manifest["version"], str)
            and isinstance(manifest["made_s"], float)
        ):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"{archive}: its manifest cannot be read; use another backup") from None
    return dict(manifest)


def _is_plain(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and ".." not in parts and bool(re.fullmatch(r"[\w./:-]{1,200}", name))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    """Write a file of the archive to `target`, and return its SHA-256."""
    source, digest = tar.extractfile(member), hashlib.sha256()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        while source is not None and (block := source.read(2**20)):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _copy_files(folder: Path, target: Path, packages: bool, journal: SqliteJournal | None) -> Iterator[str]:
    """Copy the files of a data directory, and yield their names."""
    # The history before the journal: a start reads from the journal what the history lacks, but a history that is ahead
    # of the journal is taken for that of another journal, and emptied.
    for name in (HISTORY, JOURNAL, *(name for name in DATABASES if name != HISTORY)):
        if name == JOURNAL:
            _copy_journal(folder / name, target / name, journal)
            yield name
        elif (folder / name).is_file():
            _copy_database(folder / name, target / name)
            yield name
    names = [name for name in FILES if (folder / name).is_file()]
    for subfolder in (*FOLDERS, "packages") if packages else FOLDERS:
        if (folder / subfolder).is_dir():
            paths = sorted((folder / subfolder).iterdir())
            names += [f"{subfolder}/{path.name}" for path in paths if path.is_file()]
    for name in names:
        _write(target / name, (folder / name).read_bytes())
        yield name


def _copy_journal(source: Path, target: Path, journal: SqliteJournal | None) -> None:
    try:
        if journal is not None:
            journal.copy_to(target)
            return
        with SqliteJournal(source, strict=True) as opened:
            opened.copy_to(target)
    except (JournalError, sqlite3.Error) as error:
        raise BackupError(
            f"the journal cannot be backed up: {error} (`gavel fsck` reports what is wrong)"
        ) from None


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database in a consistent state. The connection never writes, so it does not disturb the daemon."""
    give_up_s = time.monotonic() + BUSY_S

    def check_time(status: int, remaining: int, total: int) -> None:
        if time.monotonic() > give_up_s:
            raise BackupError(f"{source} is locked by another program; try again")

    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy, pages=4096, progress=check_time, sleep=0.01)
    except sqlite3.Error as error:
        raise BackupError(f"cannot read {source}: {error}; `gavel fsck` reports what is wrong") from None


def _last_record(path: Path) -> int:
    """Return the number of the last record of a copied journal; raise BackupError if the file is damaged."""
    try:
        with SqliteJournal(path, strict=True) as journal:
            records = journal.last_seq
        lock_path(path).unlink(missing_ok=True)
        return records
    except JournalError as error:
        raise BackupError(f"the journal cannot be backed up: {error}") from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
