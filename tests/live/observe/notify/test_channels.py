"""The settings of channels: mistakes are refused with the field and the remedy, and secrets are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.files.settings import ConfigError
from scheduler.live.config import daemon_config
from scheduler.live.observe.notify.channels import SECRET_BYTES_MAX, Channel, check_secrets
from tests.support.wording import Wording

GOOD = 'name = "ops"\nurl = "https://hooks.example.com/a"\nevents = ["job_failed"]\n'


def refusal(folder: Path, *channels: str) -> ConfigError:
    """Return how a settings file with these channels is refused."""
    path = folder / "gavel.toml"
    path.write_text("".join(f"[[notify]]\n{channel}" for channel in channels))
    with pytest.raises(ConfigError) as refused:
        daemon_config(str(path), {}, variables={})
    return refused.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "hooks.example.com/a"),
        ("url", "ftp://example.com"),
        ("url", "https:///a"),
        ("url", "https://u:p@example.com"),
        ("url", "https://example.com:99999/"),
        ("url", "https://exämple.com/"),
        ("url", "https://[::1/"),
        ("url", "https://a b/"),
        ("url", "https://example.com/#a"),
        ("url", "https://example.com/" + "a" * 2000),
        *(("name", name) for name in ("", "a b", "a/b", "é", "a" * 257)),
    ],
)
def test_a_value_is_refused_with_its_field(tmp_path: Path, field: str, value: str, wording: Wording) -> None:
    """Each wrong name or URL is refused with its line, and no message quotes the path of a URL."""
    channel = {"name": "ops", "url": "https://hooks.example.com/a"} | {field: value}
    lines = [f'{key} = "{text}"' for key, text in channel.items()]
    error = refusal(tmp_path, "\n".join([*lines, 'events = ["job_failed"]', ""]))
    assert (error.field, error.line) == (f"notify[0].{field}", 2 + (field == "url"))
    wording(error)


def test_an_unknown_event_is_refused_with_the_nearest_one(tmp_path: Path, wording: Wording) -> None:
    """The message names the event that was probably meant."""
    error = refusal(tmp_path, GOOD.replace("job_failed", "job_fails"))
    assert error.field == "notify[0].events[0]"
    wording(error)


def test_a_channel_must_have_a_purpose(tmp_path: Path, wording: Wording) -> None:
    """A channel without events that jobs may not name either would never receive anything."""
    error = refusal(tmp_path, GOOD.replace('["job_failed"]', "[]"))
    assert error.field == "notify[0].events"
    wording(error)


def test_names_are_unique(tmp_path: Path, wording: Wording) -> None:
    """Of two channels of one name, the second is refused; and there are at most 32 channels."""
    error = refusal(tmp_path, GOOD, GOOD)
    assert (error.field, error.line) == ("notify[1].name", 6)
    wording(error)
    wording(refusal(tmp_path, *(GOOD.replace("ops", f"ops{n}") for n in range(33))))


def test_a_url_is_shown_without_its_path() -> None:
    """The path and the query of a webhook are often secrets."""
    assert (
        Channel(name="ops", url="https://example.com:8443/T0/secret?a=b", events=()).origin
        == "https://example.com:8443"
    )


def test_a_secret_is_read_without_white_space_at_its_ends(tmp_path: Path) -> None:
    """The newline that editors add is no part of a secret."""
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    path.chmod(0o640)
    assert Channel(name="ops", url="https://a.b", events=(), secret_file=str(path)).secret() == b"s3cret"


@pytest.mark.parametrize("fault", ["missing", "empty", "folder", "open", "large"])
def test_a_secret_that_cannot_be_used_is_refused(
    tmp_path: Path, fault: str, wording: Wording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing, empty or huge file, a directory, and a file that every user can read stop the start."""
    monkeypatch.chdir(tmp_path)
    path = Path("secret")
    if fault == "folder":
        path.mkdir()
    elif fault != "missing":
        path.write_text({"empty": "\n", "large": "a" * (SECRET_BYTES_MAX + 1)}.get(fault, "s3cret"))
        path.chmod(0o644 if fault == "open" else 0o600)
    with pytest.raises(ConfigError) as refused:
        check_secrets([Channel(name="ops", url="https://a.b", events=(), secret_file=str(path))])
    wording(refused.value)
