"""Quotas in the settings: what they may say, and the errors that name what they must not."""

from pathlib import Path

import msgspec
import pytest

from protos.files.settings import ConfigError, read_settings
from scheduler.model import gpu_quotas
from scheduler.model.jobs import JobSpec
from scheduler.model.quota import Quota
from scheduler.model.settings import Settings, TenantSpec
from tests.support.wording import Wording

FILE = """
[[tenants]]
name = "org"
quota = {gpus = {h100 = 16, "*" = 64}}

[[tenants]]
name = "org/a"
quota.gpus.h100 = 5
[tenants.each_user]
gpus = {"*" = 8}
jobs_running = 4
jobs_unfinished = 100

[[tenants]]
name = "lab"
quota = {gpu_hours = {week = 500, day = 0.5}, cost = {month = 2000}, beyond = "backfill"}
[tenants.each_user]
cost = {day = 0}
"""
QUOTAS = (
    TenantSpec(
        name="org",
        quota=Quota(gpus={"h100": 16, "*": 64}),
    ),
    TenantSpec(
        name="org/a",
        quota=Quota(gpus={"h100": 5}),
        each_user=Quota(gpus={"*": 8}, jobs_running=4, jobs_unfinished=100),
    ),
    TenantSpec(
        name="lab",
        quota=Quota(gpu_hours={"week": 500.0, "day": 0.5}, cost={"month": 2000.0}, beyond="backfill"),
        each_user=Quota(cost={"day": 0.0}),
    ),
)


def load(folder: Path, text: str) -> Settings:
    """Read settings from a file with this text."""
    path = folder / "gavel.toml"
    path.write_text(text)
    return read_settings(Settings, path)


def test_a_file_with_quotas(tmp_path: Path) -> None:
    """Each tenant has a quota for all jobs below it, and one for each of its users."""
    assert load(tmp_path, FILE).tenants == QUOTAS


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        ("gpus = {h100 = -1}", "tenants.a.quota.gpus.h100"),
        ("gpus = {h100 = 1000000000}", "tenants.a.quota.gpus.h100"),
        ("gpus = {h100 = nan}", "tenants[0].quota.gpus.h100"),
        ("gpus = {h100 = 2.5}", "tenants[0].quota.gpus.h100"),
        ('gpus = {"" = 2}', "tenants.a.quota.gpus"),
        ("gpu = {h100 = 1}", "tenants[0].quota.gpu"),
        ("jobs_running = -1", "tenants.a.quota.jobs_running"),
        ("jobs_running = 1.5", "tenants[0].quota.jobs_running"),
        ('jobs_unfinished = "many"', "tenants[0].quota.jobs_unfinished"),
        ("jobs_unfinished = 1_000_000_000_000", "tenants.a.quota.jobs_unfinished"),
        ("gpu_hours = {week = nan}", "tenants.a.quota.gpu_hours.week"),
        ("gpu_hours = {week = inf}", "tenants.a.quota.gpu_hours.week"),
        ("gpu_hours = {week = -1}", "tenants.a.quota.gpu_hours.week"),
        ("gpu_hours = {week = 1e13}", "tenants.a.quota.gpu_hours.week"),
        ("gpu_hours = {year = 500}", "tenants.a.quota.gpu_hours"),
        ('gpu_hours = {"" = 500}', "tenants.a.quota.gpu_hours"),
        ('gpu_hours = {week = "500"}', "tenants[0].quota.gpu_hours.week"),
        ("gpu_hours = 500", "tenants[0].quota.gpu_hours"),
        ("gpu_hour = {week = 500}", "tenants[0].quota.gpu_hour"),
        ("cost = {month = nan}", "tenants.a.quota.cost.month"),
        ("cost = {month = -0.01}", "tenants.a.quota.cost.month"),
        ("cost = {month = 1e300}", "tenants.a.quota.cost.month"),
        ("cost = {decade = 1}", "tenants.a.quota.cost"),
        ("costs = {month = 1}", "tenants[0].quota.costs"),
        ('beyond = "stop"', "tenants.a.quota.beyond"),
        ("beyond = true", "tenants[0].quota.beyond"),
    ],
)
def test_a_wrong_quota_is_refused(tmp_path: Path, quota: str, field: str, wording: Wording) -> None:
    """The error names the key with its tenant, the value and what is possible."""
    for place in ("quota", "each_user"):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, f"[[tenants]]\nname = 'a'\n[tenants.{place}]\n{quota}\n")
        assert caught.value.field == field.replace(".quota", f".{place}")
        wording(caught.value)


def test_settings_without_quotas_are_read_as_before():
    """Tenants in journals of older releases have no quotas, and a quota that is absent is not written."""
    old = msgspec.json.decode(b'{"name": "a", "weight": 2.0}', type=TenantSpec)
    assert old == TenantSpec(name="a", weight=2.0)
    assert msgspec.json.decode(msgspec.json.encode(old))["quota"] == {}
    assert msgspec.json.decode(msgspec.json.encode(QUOTAS), type=tuple[TenantSpec, ...]) == QUOTAS


def test_names_that_users_make_up_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quotas of only so many tenants and users are kept; those of others are derived again."""
    monkeypatch.setattr(gpu_quotas, "OWNERS_MAX", 3)
    quotas = gpu_quotas.GpuQuotas(Settings(tenants=QUOTAS))
    for number in range(10):
        of_job = quotas.of(JobSpec(tenant=f"org/{number}", user="ann"))
        assert [quota.gpus for quota in of_job] == [64, 16]
        assert len(quotas._of) <= 3
