"""Uploads: a foreign archive is unpacked inside its folder and within limits, or refused as a whole."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.wording import Wording
from worker_agent.node.packages import PackageError, PackageLimits, Packages

SMALL = PackageLimits(
    archive_bytes_max=100_000, unpacked_bytes_max=50_000, entries_max=20, path_length_max=100
)


def entry(name: str, data: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of an archive, usually a file."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """A symbolic link."""
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of these entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    """The digest that names these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def add(packages: Packages, data: bytes) -> str:
    """Add an archive, and return its digest."""
    packages.add(digest(data), [data[:100], data[100:]])
    return digest(data)


def everything(folder: Path) -> set[str]:
    """Return all paths below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_package_is_unpacked_once_and_copied_for_each_run(tmp_path: Path) -> None:
    """Changes that a run makes to its copy are not in the copy of the next run."""
    packages = Packages(tmp_path / "packages")
    data = archive(
        entry("./train.py", b"print()", mode=0o755, mtime=1e9),
        entry("data/a.txt", b"a"),
        link("now", "data/a.txt"),
    )
    name = add(packages, data)
    assert packages.has(name)
    packages.check_out(name, tmp_path / "one")
    (tmp_path / "one" / "train.py").write_text("something else")
    packages.check_out(name, tmp_path / "two")
    assert everything(tmp_path / "two") == {"train.py", "data", "data/a.txt", "now"}
    assert (tmp_path / "two" / "train.py").read_text() == "print()"
    assert os.access(tmp_path / "two" / "train.py", os.X_OK)
    assert (tmp_path / "two" / "now").read_text() == "a"


DANGEROUS = {
    "absolute": [entry("/etc/x", b"x")],
    "above": [entry("../x", b"x")],
    "above from below": [entry("a/../../x", b"x")],
    "long": [entry("a" * 200, b"x")],
    "link to a file of the node": [link("a", "/etc/passwd")],
    "link above": [link("a", "../x")],
    "link above from below": [link("a/b", "../../x")],
    "link by a link": [link("d", "."), link("a", "d/../../x")],
    "link in a circle": [link("a", "b"), entry("a/x", b"x"), link("a/y", "x")],
    "file as directory": [entry("a", b"x"), entry("a/b", b"x")],
    "directory as file": [entry("a/b", b"x"), entry("a", b"x")],
    "hard link": [entry("a", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "device": [entry("a", type=tarfile.CHRTYPE)],
    "pipe": [entry("a", type=tarfile.FIFOTYPE)],
    "too many": [entry(str(i)) for i in range(21)],
    "too large": [entry("a", b"x" * 50_001)],
}


@pytest.mark.parametrize("kind", DANGEROUS)
def test_a_dangerous_package_is_refused(tmp_path: Path, kind: str, wording: Wording) -> None:
    """The error names what is wrong; nothing of the package is left, inside or outside."""
    packages = Packages(tmp_path / "packages", SMALL)
    with pytest.raises(PackageError) as refused:
        add(packages, archive(*DANGEROUS[kind]))
    wording(refused.value, detail=re.compile(r"(?<=unpacked: ).*"))
    assert everything(tmp_path) == {"packages"}


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    """A link may go up and down again within the package."""
    packages = Packages(tmp_path / "packages", SMALL)
    name = add(packages, archive(entry("a/x", b"x"), link("b/c/d", "../../a/x"), link("e", "b/c")))
    packages.check_out(name, tmp_path / "out")
    assert (tmp_path / "out" / "e" / "d").read_bytes() == b"x"


def test_an_archive_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    """Unpacking a small archive of a huge file stops at the limit."""
    with pytest.raises(PackageError, match="larger than 50000 bytes"):
        add(Packages(tmp_path / "packages", SMALL), archive(entry("zeros", b"\0" * 5_000_000)))


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", ".tar.gz"),
        (b"hello", ".tar.zst"),
        (gzip.compress(b"hello"), "unpacked"),
        (archive(entry("a", b"x" * 5000))[:-30], "unpacked"),
        (b"x" * 100_001, "100000 bytes"),
    ],
    ids=["empty", "text", "packed text", "cut off", "too large"],
)
def test_a_file_that_is_no_package_is_refused(
    tmp_path: Path, data: bytes, part: str, wording: Wording
) -> None:
    """The agent refuses rubbish, half an archive and one that is too large, and keeps none of them."""
    with pytest.raises(PackageError, match=re.escape(part)) as refused:
        add(Packages(tmp_path / "packages", SMALL), data)
    wording(refused.value, detail=re.compile(r"(?<=unpacked: ).*"))
    assert everything(tmp_path) == {"packages"}


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    """An archive that was cut off anywhere, even between two files, or has rubbish for a header, is refused."""
    packages = Packages(tmp_path / "packages")
    whole = archive(entry("a", os.urandom(600)), entry("b", os.urandom(600)))
    tar = gzip.decompress(whole)
    cut = [whole[:size] for size in (*range(1, len(whole), 50), *range(len(whole) - 30, len(whole)))]
    cut += [gzip.compress(tar[:size], mtime=0) for size in range(0, 4 * 512 + 1024, 512)]
    cut += [gzip.compress(tar[:1536] + b"x" * 512 + tar[2048:], mtime=0)]
    cut += [whole[:-8] + b"\0\0\0\0" + whole[-4:]]
    accepted = []
    for number, data in enumerate(cut):
        try:
            add(packages, data)
            accepted.append(number)
        except PackageError:
            continue
    assert accepted == []
    packages.check_out(add(packages, whole), tmp_path / "out")
    assert everything(tmp_path / "out") == {"a", "b"}


def test_a_package_must_match_its_digest(tmp_path: Path, wording: Wording) -> None:
    """A package that was damaged on its way, or is named for a path, is refused."""
    packages = Packages(tmp_path / "packages")
    with pytest.raises(PackageError) as refused:
        packages.add("sha256:" + "0" * 64, [archive(entry("a"))])
    wording(refused.value, digest=re.compile(r"[0-9a-f]{64}"))
    for name in ("sha256:../../x", "md5:" + "0" * 32, "sha256:" + "A" * 64, ""):
        with pytest.raises(PackageError, match="is not a digest"):
            packages.has(name)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd to pack with")
@pytest.mark.skipif(importlib.util.find_spec("zstandard") is None, reason="no zstandard to unpack with")
def test_a_zstd_archive_is_unpacked(tmp_path: Path) -> None:
    """A whole archive is unpacked, and one that was cut off is refused."""
    tar = gzip.decompress(archive(entry("a", b"x")))
    data = subprocess.run(["zstd", "-c"], input=tar, capture_output=True, check=True).stdout
    packages = Packages(tmp_path / "packages")
    packages.check_out(add(packages, data), tmp_path / "out")
    assert (tmp_path / "out" / "a").read_bytes() == b"x"
    with pytest.raises(PackageError, match="cannot be unpacked"):
        add(packages, data[:-5])


@pytest.mark.skipif(importlib.util.find_spec("zstandard") is not None, reason="zstandard is here")
def test_a_zstd_archive_needs_zstandard(tmp_path: Path, wording: Wording) -> None:
    """The error names the remedy."""
    with pytest.raises(PackageError, match=r"zstandard.*gzip") as refused:
        add(Packages(tmp_path / "packages"), b"\x28\xb5\x2f\xfd" + b"x" * 50)
    wording(refused.value)


def test_the_least_recently_used_package_goes_first(tmp_path: Path) -> None:
    """When the cache is too large, the least recently used packages are removed; the newest always stays."""
    packages = Packages(tmp_path / "packages", PackageLimits(cache_bytes_max=2500))
    names = []
    for number in range(3):
        names.append(add(packages, archive(entry("a", bytes([number]) * 1000))))
        os.utime(packages._path(names[-1]), (number, number))
        if number == 1:
            # The first one is used again.
            packages.check_out(names[0], tmp_path / "out")
    assert [packages.has(name) for name in names] == [True, False, True]


def test_a_half_unpacked_package_is_removed_at_the_start(tmp_path: Path) -> None:
    """A package that a killed agent had half unpacked is removed and not used."""
    (tmp_path / "packages" / "new-abc" / "tree").mkdir(parents=True)
    Packages(tmp_path / "packages")
    assert everything(tmp_path) == {"packages"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_copy_belongs_to_the_user(tmp_path: Path) -> None:
    """All files and links of a copy are the user's, but the target of a link keeps its owner."""
    packages = Packages(tmp_path / "packages")
    name = add(packages, archive(entry("a/b", b"x"), link("c", "a")))
    packages.check_out(name, tmp_path / "out", 54321, 54322)
    owners = {path.lstat().st_uid for path in [tmp_path / "out", *(tmp_path / "out").rglob("*")]}
    assert owners == {54321}
