"""`gavel profile`, and the way from a script to a plan that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.support.wording import Wording
from tests.training.leases import Process, job_path

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from gavel.training import LeasedIterator, ResumableSampler
from gavel.training.parallel import Pipeline

torch.manual_seed(0)
widths = [int(each) for each in sys.argv[1:]] or [8, 64, 64, 8, 8]
layers = {f"h.{n}": torch.nn.Linear(a, b) for n, (a, b) in enumerate(zip(widths, widths[1:]))}
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 8))
loader = DataLoader(data, batch_size=16, sampler=ResumableSampler(data, seed=1, rank=0, world=1), drop_last=True)
pipe = Pipeline(layers, torch.nn.functional.mse_loss, torch.optim.Adam)
for batch in LeasedIterator(loader, checkpoint=pipe.checkpoint("checkpoints"), steps=6):
    loss = pipe.step(batch)
print("rank", pipe.grid.rank, "of", pipe.grid.world, "trained", list(pipe.layers[0].slots), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script that trains a pipeline, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", job_path(tmp_path))
    Path("train.py").write_text(SCRIPT)
    return "train.py"


def test_a_script_becomes_a_plan_that_runs(gavel: Gavel, script: str, tmp_path: Path) -> None:
    """Profiled, planned for two ranks in depth, and trained by that plan; the script stays as it is."""
    answer = gavel("profile", "--samples", "2,4", script)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("model.profile.json: 4 layers, ")
    arguments = ("plan", "model.profile.json", "--batch", "16", "--cluster", "cpu=2", "--json")
    (plan,) = json.loads(gavel(*arguments, "--evaluate", "p2-b4").stdout)["plans"]
    assert (plan["worker_type"], plan["estimated"], sum(plan["stages"])) == ("cpu", False, 4)
    Path("plan.json").write_text(json.dumps(plan))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    ranks = Process(torchrun, {"GAVEL_PLAN": "plan.json"}, tmp_path / "output.txt", job_path(tmp_path))
    assert ranks.wait() == 0, ranks.text()
    assert sorted(line for line in ranks.text().splitlines() if "trained" in line) == [
        f"rank {rank} of 2 trained ['weight', 'bias']" for rank in (0, 1)
    ]


def test_times_of_further_types_are_added(gavel: Gavel, script: str) -> None:
    """Arguments after the script are its own; a profile of another model is not overwritten."""
    for name in ("v100", "t4"):
        assert gavel("profile", "--type", name, "-o", "small.json", script, "8", "8").exit_code == 0
    content = json.loads(Path("small.json").read_text())
    assert [list(layer["ms"]) for layer in content["layers"]] == [["v100", "t4"]]
    answer = gavel("profile", "-o", "small.json", script, "8", "4", "8")
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert json.loads(Path("small.json").read_text()) == content


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["absent.py"],
        ["-o", "absent/model.json", "train.py"],
        ["-o", "train.py", "train.py"],
        ["--samples", "0", "train.py"],
        ["--samples", "1,,2", "train.py"],
        ["failing.py"],
        ["aborting.py"],
        ["empty.py"],
    ],
)
def test_what_cannot_be_profiled_is_one_line(
    gavel: Gavel, script: str, wording: Wording, arguments: list[str]
) -> None:
    """Nothing is written, neither to standard output nor to the file."""
    Path("failing.py").write_text("raise SystemExit(3)")
    Path("aborting.py").write_text("import os; os.abort()")
    Path("empty.py").write_text("")
    answer = gavel("profile", *arguments)
    assert (answer.exit_code, answer.stdout) == (
        1 if "ing.py" in str(arguments) or "empty" in str(arguments) else 2,
        "",
    )
    assert not Path("model.profile.json").exists()
    wording(answer.stderr)
