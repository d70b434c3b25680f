"""A command line that cannot be obeyed: one line that says why, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel

MIXED = str(Path(__file__).parents[3] / "examples" / "mixed_cluster.yaml")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--time-limit", x) for x in ("0", "-1", "nan", "inf", "soon")]
    + [("--seed", x) for x in ("-1", "1.5", str(2**63))],
)
def test_options_out_of_range(option: str, value: str, gavel: Gavel) -> None:
    """Options are checked before anything is read; a wrong one is a single line too."""
    result = gavel("allocate", "missing.json", option, value)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel allocate: invalid value for '{option}': ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("allocate",), "gavel allocate: missing argument 'PROBLEM'."),
        (("allocate", "a", "b"), "gavel allocate: got unexpected extra argument (b)"),
        (("allocate", "a", "--seed", "x"), "gavel allocate: invalid value for '--seed': 'x' is not a whole number"),
        (("allocat",), "gavel: no such command 'allocat'."),
        (("--loud",), "gavel: no such option '--loud'."),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_read(arguments: tuple[str, ...], line: str, gavel: Gavel) -> None:
    """What click has to say takes one line, under the name of the command."""
    result = gavel(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(line.removesuffix("."))


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_that_nothing_takes(options: tuple[str, ...]) -> None:
    """A full disk behind the answer is one line and exit code 2."""
    command = [sys.executable, "-m", "gavel", "allocate", MIXED, *options]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        2,
        "gavel: cannot write: no space left on device\n",
    )
