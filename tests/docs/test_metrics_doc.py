"""docs/metrics.md and the alerts of deploy/prometheus: they name metrics that exist, and fire when they should."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.live.observe.metrics.catalogue import WARNING_KINDS, Metrics
from tests.support.parts import needs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
FOLDER = ROOT / "deploy" / "prometheus"
FAMILIES = Metrics("0").registry.families
RULES = yaml.safe_load((FOLDER / "gavel.rules.yml").read_text())["groups"][0]["rules"]
CASES = yaml.safe_load((FOLDER / "gavel.rules.test.yml").read_text())["tests"]
NAMES = re.compile(r"\bgavel_[a-z_]+")
# Suffixes of the series of a histogram.
SUFFIXES = ("", "_bucket", "_count", "_sum")


def rows() -> list[str]:
    """Return the rows of the table of metrics, as the catalogue has them."""
    return [
        f"| `{family.name}` | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES.values()
    ]


def test_the_page_lists_every_metric() -> None:
    """The table has each family with its labels and meaning, in the order of a scrape."""
    assert [
        line for line in PAGE.splitlines() if re.match(r"\| `gavel_\w+` \| [^|]*\| [A-Z]", line)
    ] == rows()


def test_names_follow_the_conventions() -> None:
    """Counters end with _total; times have their unit; each meaning is a sentence."""
    for family in FAMILIES.values():
        assert family.name.startswith("gavel_")
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help.endswith(".")
        assert '"' not in family.help


def test_pages_and_alerts_name_metrics_that_exist() -> None:
    """Each name in queries of the page and in alerts is that of a series."""
    known = {family + suffix for family in FAMILIES for suffix in SUFFIXES}
    texts = [PAGE, *((FOLDER / f"gavel.rules{end}.yml").read_text() for end in ("", ".test"))]
    assert {name for text in texts for name in NAMES.findall(text)} - known == set()
    assert all(f"`{kind}`" in PAGE for kind in WARNING_KINDS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """It has a severity, a summary, a remedy, and a page with more; it is in the table, and waits before it fires."""
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.M)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert not anchor or anchor in anchors
    assert f"| `{rule['alert']}` |" in PAGE
    assert rule["for"]


def test_each_alert_is_shown_to_fire() -> None:
    """Each alert fires alone in one of the cases; there are as many cases in which none fires."""
    fired = [
        sample["labels"]
        for case in CASES
        for test in case["promql_expr_test"]
        for sample in test["exp_samples"]
    ]
    assert {label.split('"')[1] for label in fired} == {rule["alert"] for rule in RULES}
    silent = [case for case in CASES if not any(test["exp_samples"] for test in case["promql_expr_test"])]
    assert len(silent) == len(RULES)


@needs("promtool")
class TestWithPromtool:
    """What Prometheus itself says."""

    def run(self, *words: str, text: str = "") -> None:
        """Run promtool in the folder of the rules; it must find nothing."""
        done = subprocess.run(
            ["promtool", *words], cwd=FOLDER, input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr

    def test_alerts_fire_and_stay_silent(self) -> None:
        """The rules are valid, and every case ends as it says."""
        self.run("check", "rules", "gavel.rules.yml")
        self.run("test", "rules", "gavel.rules.test.yml")

    def test_metrics_pass_its_linter(self) -> None:
        """A scrape with a series of each family has no fault in names, types or texts."""
        metrics = Metrics("0")
        for family in metrics.registry.families.values():
            labels = tuple("x" for _ in family.labels)
            match family.kind:
                case "counter":
                    family.values[labels] = 1.0
                case "gauge":
                    family.set_all({labels: 1.0})
                case _:
                    family.observe(*labels, value=1.0)
        self.run("check", "metrics", text=metrics.text())
