"""Rules that client, scheduler and agent share are stated once."""

import pytest

from protos.gavel.v1 import limits
from scheduler.live.access.people import PeopleConfig
from tests.support.wording import Wording
from worker_agent.node.packages import PackageLimits


@pytest.mark.parametrize(
    ("address", "local"),
    [
        *((text, True) for text in ("127.0.0.1:1", "127.0.0.1", "127.9.9.9:1", "localhost", "localhost:1")),
        *((text, True) for text in ("[::1]:1", "[::1]", "::1")),
        *((text, False) for text in ("10.0.0.1:1", "0.0.0.0:1", "[::]:1", "::2", "", ":1")),
        *((text, False) for text in ("localhost.example:1", "127.0.0.1.example", "example")),
    ],
)
def test_only_this_machine_is_a_loopback_address(address: str, local: bool) -> None:
    """Loopback addresses are recognised in every form, and no name is trusted except `localhost`."""
    assert limits.is_loopback(address) == local


@pytest.mark.parametrize(
    ("command", "script", "field"),
    [
        (["a"], "", ""),
        ((), "a", ""),
        ((), "", "command"),
        (["a"], "b", "script"),
        ([""], "", "command[0]"),
    ],
)
def test_a_job_has_a_command_or_a_script(command: list[str], script: str, field: str) -> None:
    """A job needs either a command or a script, not both, and an error names the field at fault."""
    at, fault = limits.program_fault(command, script)
    assert (at, bool(fault)) == (field, bool(field))


def test_names_of_variables() -> None:
    """Variables have names that shells allow, and those that Gavel sets are recognised."""
    assert all(map(limits.is_variable, ("A", "_", "a1", "A" * limits.NAME_CHARS_MAX)))
    assert not any(map(limits.is_variable, ("", "1A", "A B", "A-B", "A\n", "Ä", "A" * 257)))
    assert all(map(limits.is_set_by_gavel, (*limits.SET_BY_GAVEL, "GAVEL_", "GAVEL_JOB_ID")))
    assert not any(map(limits.is_set_by_gavel, ("GAVEL", "RANKS", "rank")))


def test_names_of_packages_and_secrets() -> None:
    """Digests of packages and names of secrets have one form each."""
    digest = "sha256:" + "0a" * 32
    assert limits.is_digest(digest)
    assert not any(map(limits.is_digest, ("", digest[:-1], digest.upper(), f"{digest}\n", "md5:" + "0" * 64)))
    assert all(map(limits.is_secret, ("hub-token", "a.b", "_", "a" * 128)))
    assert not any(map(limits.is_secret, ("", ".a", "a/b", "a b", "a" * 129)))


def test_agents_accept_the_packages_that_the_scheduler_accepts() -> None:
    """The defaults of the scheduler and of agents are the shared limits."""
    assert PeopleConfig().package_bytes_max == limits.PACKAGE_BYTES_MAX
    assert (
        PackageLimits(
            archive_bytes_max=limits.PACKAGE_BYTES_MAX,
            unpacked_bytes_max=limits.UNPACKED_BYTES_MAX,
            entries_max=limits.PACKAGE_FILES_MAX,
            path_length_max=limits.PACKAGE_PATH_CHARS_MAX,
        )
        == PackageLimits()
    )


IMAGES = ("python:3.12", "docker.io/library/python@sha256:0a", "r.io:5000/a/b_c:v1", "/a/b.sif")
NO_IMAGES = (
    *(
        "",
        "/",
        "//",
        "/.",
        "/a/..",
        "/a:b",
        "/a,b",
        "~/a",
        "./a",
        "../a",
        "a/../b",
        "a.sqfs",
        "a b",
        "-a",
        "a\n",
    ),
    *("a" * 257, "docker://a", "library://a", "$(x)", "a;b"),
)


def test_images_are_absolute_paths_or_names(wording: Wording) -> None:
    """Relative paths, options of runtimes and names with their own scheme are refused, with what to write."""
    assert [limits.image_fault(image) for image in IMAGES] == [""] * len(IMAGES)
    faults = [limits.image_fault(image) for image in NO_IMAGES]
    assert all(faults)
    wording("\n".join(dict.fromkeys(faults)))


def test_mounts() -> None:
    """A mount has a source, perhaps another target, and may be read-only."""
    assert limits.mount_of("/a") == ("/a", "/a", False)
    assert limits.mount_of("/a:ro") == ("/a", "/a", True)
    assert limits.mount_of("/a:/b/c") == ("/a", "/b/c", False)
    assert limits.mount_of("/a:/b:ro") == ("/a", "/b", True)
    for wrong in (
        "",
        "/",
        "ro",
        "a",
        "/a:",
        "/a:b",
        "/a:/b:rw",
        "/a:/b:/c",
        "/a:/../b",
        "/..:/b",
        "/a:/b,c",
        "/a\n",
    ):
        with pytest.raises(ValueError, match="must be"):
            limits.mount_of(wrong)
