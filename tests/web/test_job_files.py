"""Job files that are sent to the gateway: read there without touching its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.web.job_files import specs_in
from scheduler.live.access.roles import Role
from tests.web.conftest import Site

YAML = "application/yaml"


def test_a_job_file_is_submitted(site: Site) -> None:
    """As `gavel submit` would: the whole list of jobs, or none."""
    text = (
        b"defaults: {gpus: 1}\njobs:\n  - {name: first, command: [train]}\n  - {name: second, script: echo}\n"
    )
    user = site.program(Role.USER)
    jobs = user.post("/v1/jobs", text, Content_Type=YAML, Idempotency_Key="file").json["jobs"]
    assert [user.get(f"/v1/jobs/{job}").json["spec"]["name"] for job in jobs] == ["first", "second"]
    previews = user.post("/v1/jobs:preview", text, Content_Type="text/yaml; charset=utf-8").json["previews"]
    assert [preview["accepted"] for preview in previews] == [True, True]


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        ("command: [x]\ngpu: 1\n", "gpu", 2),
        ("command: [x]\ngpus: many\n", "gpus", 2),
        ("name: [", "", 2),
        ("command: [x]\ngpus: 64\n", "gpus", 2),
        ("command: [x]\nworker_types: [moon]\n", "worker_types", 2),
        ("command: [x]\nupload: true\n", "upload", 2),
        ("command: [x]\nplan: /etc/passwd\n", "plan", 2),
        ("command: [x]\njob_type: t\nplan: {auto: /etc/passwd, batch: 8}\n", "plan", 3),
        ("command: [x]\nworkdir: here\n", "workdir", 2),
        ("command: [x]\nworkdir: ~/here\n", "workdir", 2),
        ("", "", None),
    ],
)
def test_mistakes_have_their_line(site: Site, text: str, field: str, line: int | None) -> None:
    """Those that the reader finds, and those that the scheduler finds, name the line of the file."""
    reply = site.program(Role.USER).post("/v1/jobs", text.encode(), Content_Type=YAML, Idempotency_Key="k")
    assert reply.problem[:2] == (400, "invalid")
    assert reply.json.get("field", "").startswith(field)
    assert line == reply.json.get("line")


@pytest.mark.parametrize(
    "name", ["upload: true", "plan: job.yaml", "plan: {auto: job.yaml, batch: 8}", "workdir: x"]
)
def test_no_file_of_the_gateway_is_opened(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever path a job file names."""
    (tmp_path / "job.yaml").write_text("secret")
    monkeypatch.chdir(tmp_path)

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError(f"opened {arguments}")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InvalidJob):
        specs_in(f"command: [x]\njob_type: t\n{name}\n".encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    """With the line."""
    with pytest.raises(InvalidJob) as error:
        specs_in(b"command: [x]\nname: \xff\n")
    assert error.value.line == 2


def test_other_kinds_of_bodies_are_refused(site: Site) -> None:
    """Forms, which other sites can send without asking, above all."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = site.program(Role.USER).post(
            "/v1/jobs", b"command: [x]", Content_Type=kind, Idempotency_Key="k"
        )
        assert reply.problem == (415, "invalid", "Content-Type"), kind
