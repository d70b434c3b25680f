"""Packing of work directories: the same content gives the same package, and ignored files are left out.

A directory that agents would refuse is refused before it is sent.
"""

import io
import os
import tarfile
from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.ignore import Ignore
from gavel.client.jobs.packing import TooLarge, entries, pack
from gavel.client.jobs.spec import JobSpec
from gavel.client.jobs.uploads import Uploads, without_uploads
from protos.gavel.v1 import limits
from tests.support.wording import Wording
from worker_agent.node.packages import PackageLimits
from worker_agent.node.packages import Packages as AgentPackages


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with code, data, and files that no job needs."""
    folder = tmp_path / "project"
    for name, text in {
        "train.py": "print(1)\n",
        "run.sh": "#!/bin/sh\n",
        "data/small.csv": "1,2\n",
        "data/large.bin": "x" * 1000,
        ".git/HEAD": "ref",
        "lib/__pycache__/a.pyc": "x",
        "lib/a.py": "",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "run.sh").chmod(0o750)
    (folder / "link").symlink_to("data/small.csv")
    return folder


def names(folder: Path) -> list[str]:
    """Return the names that are packed."""
    return [entry.name for entry in entries(folder)]


def test_files_that_are_packed(project: Path) -> None:
    """Files, directories and links are packed in order, but neither version control nor caches."""
    assert names(project) == [
        *("data", "data/large.bin", "data/small.csv", "lib", "lib/a.py"),
        *("link", "run.sh", "train.py"),
    ]


def test_the_same_content_is_the_same_package(project: Path, tmp_path: Path) -> None:
    """Times, owners and order do not count; a changed byte or mode does."""
    digest = pack(project, io.BytesIO()).digest
    os.utime(project / "train.py", (1, 1))
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for entry in reversed(entries(project)):
        if entry.path.is_dir() and not entry.path.is_symlink():
            (copy / entry.name).mkdir(parents=True, exist_ok=True)
        elif entry.path.is_symlink():
            (copy / entry.name).symlink_to(os.readlink(entry.path))
        else:
            (copy / entry.name).parent.mkdir(parents=True, exist_ok=True)
            (copy / entry.name).write_bytes(entry.path.read_bytes())
    (copy / "run.sh").chmod(0o700)
    assert digest == pack(project, io.BytesIO()).digest == pack(copy, io.BytesIO()).digest
    (copy / "train.py").chmod(0o755)
    assert digest != pack(copy, io.BytesIO()).digest
    (project / "train.py").write_text("print(2)\n")
    assert digest != pack(project, io.BytesIO()).digest


def test_an_agent_unpacks_it(project: Path, tmp_path: Path) -> None:
    """An agent unpacks the package with its link and mode."""
    file = io.BytesIO()
    package = pack(project, file)
    file.seek(0)
    packages = AgentPackages(tmp_path / "packages", PackageLimits())
    packages.add(package.digest, iter(lambda: file.read(100), b""))
    packages.check_out(package.digest, tmp_path / "run")
    assert (tmp_path / "run" / "train.py").read_text() == "print(1)\n"
    assert (tmp_path / "run" / "link").read_text() == "1,2\n"
    assert os.access(tmp_path / "run" / "run.sh", os.X_OK)
    assert (6, len(file.getvalue())) == (package.files, package.size_bytes)


def test_an_ignore_file(project: Path) -> None:
    """Patterns of .gavelignore leave files out, and can bring back caches that are always left out."""
    (project / ".gavelignore").write_text("# data\n/data/*\n!/data/small.csv\n*.sh\n\n!__pycache__/\n")
    assert names(project) == [
        *(".gavelignore", "data", "data/small.csv", "lib", "lib/__pycache__", "lib/__pycache__/a.pyc"),
        *("lib/a.py", "link", "train.py"),
    ]


def test_files_that_git_ignores_are_not_packed(project: Path) -> None:
    """Without a .gavelignore, the .gitignore counts, which often names the secrets of a project."""
    (project / ".gitignore").write_text("data/\n.env\n")
    (project / ".env").write_text("TOKEN=x\n")
    assert not {".env", "data", "data/small.csv"} & set(names(project))
    (project / ".gavelignore").write_text("")
    assert {".env", "data", "data/small.csv"} <= set(names(project))


@pytest.mark.parametrize(
    ("pattern", "path", "directory", "ignored"),
    [
        ("*.pt", "a.pt", False, True),
        ("*.pt", "deep/er/a.pt", False, True),
        ("/a.pt", "deep/a.pt", False, False),
        ("/a.pt", "a.pt", False, True),
        ("data/x", "sub/data/x", False, False),
        ("data/x", "data/x", False, True),
        ("out/", "out", True, True),
        ("out/", "out", False, False),
        ("a?c", "abc", False, True),
        ("a?c", "a/c", False, False),
        ("**/logs", "a/b/logs", True, True),
        ("**/logs", "logs", True, True),
        ("logs/**", "logs/a/b", False, True),
        ("logs/**", "logs", True, False),
        ("a/**/b", "a/b", False, True),
        ("a/**/b", "a/x/y/b", False, True),
        ("[ab].py", "a.py", False, True),
        ("[!ab].py", "a.py", False, False),
        ("[a-c]1", "b1", False, True),
        ("\\#x", "#x", False, True),
        ("\\!x", "!x", False, True),
        ("x ", "x", False, True),
        ("*", "a/b", False, True),
        ("a.b", "axb", False, False),
        ("[", "[", False, True),
        ("!.git", ".git", True, False),
        ("", "", False, False),
        ("/", "x", False, False),
    ],
)
def test_patterns_mean_what_git_means(pattern: str, path: str, directory: bool, ignored: bool) -> None:
    """Anchors, depth, directories, classes, escapes and negation have the meaning of git."""
    assert ignored == Ignore([pattern]).ignores(path, directory)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "data/../../x"])
def test_links_that_lead_out_are_refused_before_sending(project: Path, target: str, wording: Wording) -> None:
    """An agent would refuse the package later; packing refuses it at once, in one line with a remedy."""
    (project / "bad").symlink_to(target)
    with pytest.raises(TooLarge, match=r"^bad .*\.gavelignore") as raised:
        pack(project, io.BytesIO())
    wording(raised.value)


def test_sockets_and_pipes_are_left_out(project: Path) -> None:
    """Sockets and pipes, which cannot be packed, are left out silently."""
    os.mkfifo(project / "pipe")
    assert "pipe" not in names(project)


@pytest.mark.parametrize(
    ("limit", "value", "figure"),
    [
        ("PACKAGE_FILES_MAX", 3, " 8 files"),
        ("UNPACKED_BYTES_MAX", 500, "data/large.bin"),
        ("PACKAGE_BYTES_MAX", 10, "packed"),
        ("PACKAGE_PATH_CHARS_MAX", 5, " 5 "),
    ],
)
def test_packages_beyond_the_limits_of_agents(
    project: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, figure: str, wording: Wording
) -> None:
    """Too many files, too many bytes or too long a path is refused with a remedy before anything is sent."""
    monkeypatch.setattr(limits, limit, value)
    with pytest.raises(InvalidJob) as raised:
        Uploads([JobSpec(command=("a",), upload=True, workdir=str(project))])
    assert figure in str(raised.value)
    assert str(raised.value).startswith(f"workdir: {project}: ")
    assert raised.value.reason == "too_large"
    wording(raised.value, folder=project)


def test_a_file_that_cannot_be_read_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The error names the file, with the system's reason."""

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(TooLarge, match=r"data/large\.bin: ") as raised:
        pack(project, io.BytesIO())
    wording(raised.value, folder=project)


def test_jobs_with_one_directory_send_it_once(project: Path) -> None:
    """The directory is packed once; every job names the package, and no directory of this machine."""
    specs = [
        JobSpec(command=("a",), upload=True, workdir=str(project)),
        JobSpec(command=("b",), upload=True, workdir=str(project / "." / "lib" / "..")),
        JobSpec(command=("c",), workdir="/shared"),
    ]
    calls: list[tuple[str, int, int]] = []
    with Uploads(specs, lambda *call: calls.append(call)) as uploads:
        (digest,) = uploads.packages
        assert [(digest, ""), (digest, ""), ("", "/shared")] == [
            (spec.package, spec.workdir) for spec in uploads.specs
        ]
        content = b"".join(uploads.pieces(digest))
        # After a lost connection the package is sent again.
        assert content == b"".join(uploads.pieces(digest))
    assert [words for words, _, _ in calls][-1] == "sending"
    assert calls[-1][1] == calls[-1][2] == len(content)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert "train.py" in tar.getnames()


def test_directories_that_are_surely_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A missing directory, a whole home and a whole machine are refused, by a preview too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (str(tmp_path / "missing"), str(tmp_path), "/"):
        spec = JobSpec(command=("a",), upload=True, workdir=folder)
        with pytest.raises(InvalidJob, match=r"^workdir: ") as raised:
            Uploads([spec])
        wording(raised.value, home=tmp_path)
        with pytest.raises(InvalidJob) as in_preview:
            without_uploads([spec])
        assert str(in_preview.value) == str(raised.value)
