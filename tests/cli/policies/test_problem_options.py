"""Command lines that cannot be carried out: one line with the reason, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.support.wording import Wording

MIXED = str(Path(__file__).parents[3] / "examples" / "mixed_cluster.yaml")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--time-limit", x) for x in ("0", "-1", "nan", "inf", "soon")]
    + [("--seed", x) for x in ("-1", "1.5", str(2**63))],
)
def test_options_out_of_range(option: str, value: str, gavel: Gavel, wording: Wording) -> None:
    """Options are checked before any file is read; a wrong one is reported in one line."""
    result = gavel("allocate", "missing.json", option, value)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert (result.stderr.startswith("gavel allocate: "), f"'{option}'" in result.stderr) == (True, True)
    wording(result.stderr)


@pytest.mark.parametrize(
    ("arguments", "command", "part"),
    [
        (("allocate",), "gavel allocate", "PROBLEM"),
        (("allocate", "a", "b"), "gavel allocate", "(b)"),
        (("allocate", "a", "--seed", "x"), "gavel allocate", "'--seed'"),
        (("allocat",), "gavel", "'allocat'"),
        (("--loud",), "gavel", "'--loud'"),
    ],
    ids=["no argument", "two arguments", "wrong value", "wrong command", "wrong option"],
)
def test_a_command_that_cannot_be_read(
    arguments: tuple[str, ...], command: str, part: str, gavel: Gavel, wording: Wording
) -> None:
    """An error of click is one line that begins with the command and names the part at fault."""
    result = gavel(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert (result.stderr.startswith(f"{command}: "), part in result.stderr) == (True, True)
    wording(result.stderr)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_to_a_full_disk(options: tuple[str, ...], wording: Wording) -> None:
    """A full disk behind standard output is reported in one line. Exit code 2."""
    command = [sys.executable, "-m", "gavel", "allocate", MIXED, *options]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    wording(result.stderr)
