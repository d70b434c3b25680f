"""Reports of a missing extra, and of another package that has the name of one of our modules."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from gavel.cli import installation
from gavel.cli.faults import Fault
from gavel.cli.installation import (
    OUR_MODULES,
    fault_of_import,
    foreign_modules,
    overwritten_modules,
    require,
)
from gavel.cli.policies.list import complete_policy
from protos.extras import EXTRAS
from tests.cli.conftest import Gavel
from tests.cli.service.upkeep import findings
from tests.support.wording import Wording

pytestmark = pytest.mark.usefixtures("own_home")

SMALL = (
    "--workload",
    "mixed-day",
    "--hours",
    "1",
    "--rate",
    "1",
    "--cluster",
    "v100=8,h100=8",
    "--policy",
    "las",
)
SETUP = Path(__file__).parents[2] / "setup.cfg"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of the path with a foreign package `traces`."""
    package = tmp_path / "first" / "traces"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "traces"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return package


def test_every_requirement_of_an_extra_is_known() -> None:
    """`EXTRAS` has exactly the modules that the requirements of setup.cfg provide, for the extras of commands."""
    config = configparser.ConfigParser()
    config.read(SETUP, encoding="utf-8")
    owners = packages_distributions()
    for extra, modules in EXTRAS.items():
        required = {Requirement(line).name for line in config["options.extras_require"][extra].split()}
        by_module = {module: set(owners.get(module, [module])) for module in modules}
        assert set().union(*by_module.values()) - required == set(), extra
        assert required - set().union(*by_module.values()) == set(), extra


def test_our_modules_are_those_that_are_installed() -> None:
    """The modules that doctor looks for are the packages of setup.cfg."""
    config = configparser.ConfigParser()
    config.read(SETUP, encoding="utf-8")
    included = config["options.packages.find"]["include"].split()
    assert sorted(OUR_MODULES) == sorted(name.rstrip("*") for name in included)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("matplotlib", ("allocate", "problem.yaml", "--plot", "a.svg"), "plots"),
        ("matplotlib", ("simulate", *SMALL, "--plots", "a"), "plots"),
        ("ray", ("sweep", *SMALL, "--engine", "ray"), "ray"),
    ],
)
def test_an_option_whose_extra_is_missing_is_one_line(
    missing: str,
    arguments: tuple[str, ...],
    extra: str,
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    """The option is refused before any work, with the command that installs the extra."""
    monkeypatch.setitem(sys.modules, missing, None)
    for name in ("gavel.cli.policies.plot", "gavel.cli.simulation.run_plots"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    result = gavel(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.endswith(f": pip install 'gavel-scheduler[{extra}]'\n")
    wording(result.stderr)


def test_an_installed_extra_is_no_fault() -> None:
    """`require` of an installed extra does nothing."""
    require("server", "this")


def test_another_missing_module_is_a_defect_of_ours() -> None:
    """No extra provides the module, so the error is not changed."""
    assert fault_of_import(ModuleNotFoundError("no module", name="policies.gone")) is None


def test_a_shell_completes_nothing_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion offers nothing, because an error message in the middle of a line would only disturb."""
    monkeypatch.setitem(sys.modules, "policies.registry", None)
    nothing: Any = None
    assert complete_policy(nothing, nothing, "la") == []


def test_a_foreign_module_is_named_with_its_place(foreign: Path) -> None:
    """The fault names the foreign place, so that the user can remove it; a failed import reports the same."""
    wrong = foreign_modules()
    assert list(wrong) == ["traces"]
    assert str(foreign) in wrong["traces"]
    fault = fault_of_import(ModuleNotFoundError("no module", name="traces.trace"))
    assert isinstance(fault, Fault)
    assert str(foreign) in fault.message


def test_a_module_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is missing, as after an interrupted installation, is named."""
    monkeypatch.setattr(installation, "OUR_MODULES", ("gavel", "gavel_without_this"))
    assert list(foreign_modules()) == ["gavel_without_this"]


def test_doctor_names_foreign_modules_and_continues(tmp_path: Path, foreign: Path, gavel: Gavel) -> None:
    """`doctor` has one bad finding about the foreign package, and checks the rest with our own modules."""
    code, by_level = findings(gavel, "doctor", "--data-dir", str(tmp_path / "data"))
    assert code == 1
    assert [str(foreign) in finding for finding, _ in by_level["bad"]] == [True]
    assert len(by_level["ok"]) > 1


def test_doctor_names_a_foreign_module_that_every_command_needs(tmp_path: Path) -> None:
    """A foreign `protos` is named, too, because doctor puts our folder first on the path before it imports `protos`."""
    (tmp_path / "protos").mkdir()
    (tmp_path / "protos" / "__init__.py").touch()
    command = [sys.executable, "-m", "gavel", "doctor", "--data-dir", str(tmp_path / "data"), "--json"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SETUP.parent}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    bad = [finding["what"] for finding in json.loads(done.stdout)["findings"] if finding["level"] == "bad"]
    assert (done.returncode, [str(tmp_path / "protos") in finding for finding in bad]) == (1, [True]), (
        done.stderr
    )


def test_doctor_names_a_distribution_that_wrote_into_our_modules(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other project `gavel` of the package index can write its files among ours; `doctor` names it."""
    folder = tmp_path / "gavel_of_others-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gavel-of-others\nVersion: 9.9\n")
    (folder / "top_level.txt").write_text("gavel\n")
    (folder / "RECORD").write_text("gavel/__init__.py,,\n")
    (tmp_path / "gavel").mkdir()
    (tmp_path / "gavel" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert overwritten_modules() == {"gavel": "gavel-of-others"}
    code, by_level = findings(gavel, "doctor", "--data-dir", str(tmp_path / "data"))
    assert code == 1
    assert ["gavel-of-others" in finding for finding, _ in by_level["bad"]] == [True]
