"""Profiles of real models: sizes that can be counted, a layer at a time, and nothing of the model changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gavel.training.errors import PlanError
from gavel.training.parallel import Pipeline, profile
from gavel.training.parallel.profiler import worker_type_of
from planner.profile_form import read_profile
from tests.support.wording import Wording
from tests.training.leases import ROOT, Process, job_path
from tests.training.parallel.ranks import adam, sgd
from worker_agent.node import gpus

SAMPLES = 8
WIDTH = 16


def model() -> dict[str, nn.Module]:
    """Return a model whose first and last layers share their weights."""
    embed, head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50, bias=False)
    head.weight = embed.weight
    inner = nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4 * WIDTH, WIDTH)
    )
    return {"embed": embed, "inner": inner, "norm": nn.BatchNorm1d(WIDTH), "head": head}


def batch() -> tuple[Tensor, Tensor]:
    """Return random tokens, and the tokens to predict."""
    return torch.randint(0, 50, (SAMPLES,)), torch.randint(0, 50, (SAMPLES,))


def quick_profile(layers: dict[str, nn.Module], **changed: Any) -> dict[str, Any]:
    """Return a profile that is measured only once."""
    # BatchNorm takes no single samples.
    options: dict[str, Any] = {"warm_up": 0, "repeats": 1, "samples": [2, 8]} | changed
    return profile(layers, nn.functional.cross_entropy, adam, batch(), **options)


def test_sizes_are_those_that_can_be_counted() -> None:
    """Parameters, bytes of an output, what the backward pass needs, and the arithmetic of products, per sample."""
    content = quick_profile(model())
    assert (content["format"], content["samples"], content["tied"]) == (
        "gavel-profile/1",
        [2, 8],
        [["embed", "head"]],
    )
    sizes = ("dtype_bytes", "gradient_bytes_per_parameter", "optimizer_bytes_per_parameter")
    assert [content[size] for size in sizes] == [4, 4, 8]
    layers = {layer["name"]: layer for layer in content["layers"]}
    assert [layers[name]["parameters"] for name in layers] == [800, 2 * 64 * WIDTH + 80, 2 * WIDTH, 800]
    # The last layer ends with the loss.
    assert [layers[name]["output_bytes"] for name in layers] == [4 * WIDTH, 4 * WIDTH, 4 * WIDTH, 4 / 8]
    assert [layers[name]["flops"] for name in layers] == [0, 2 * 2 * 64 * WIDTH, 0, 2 * 50 * WIDTH]
    # Tokens; the input of the first product, the output of ReLU, and the mask and the output of the dropout.
    assert layers["embed"]["stored_bytes"] == 8
    assert layers["inner"]["stored_bytes"] == 4 * WIDTH + 3 * 4 * 4 * WIDTH
    # Each layer but the first stores its input itself.
    assert [layers[name]["input_bytes"] for name in layers] == [0, 0, 0, 0]
    assert all(
        set(layer["ms"]) == {"cpu"} and set(layer["ms"]["cpu"]) == {"2", "8"} for layer in layers.values()
    )
    assert all(min(times) > 0 for layer in layers.values() for times in layer["ms"]["cpu"].values())


def test_what_two_layers_store_counts_once() -> None:
    """The output of ReLU is the input of the next product: both need it for their backward pass."""
    layers = {"a": nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "b": nn.Linear(4, 4)}
    content = profile(layers, nn.functional.mse_loss, sgd, (torch.randn(2, 4), torch.randn(2, 4)), repeats=1)
    stored = [layer["stored_bytes"] for layer in content["layers"]]
    # Layer a: its input and its output. Layer b: its output and the target, for the loss.
    assert stored == [16 + 16, 16 + 16]
    # If a stage begins with layer b, it has a copy of that output.
    assert [layer["input_bytes"] for layer in content["layers"]] == [0, 16]
    assert content["optimizer_bytes_per_parameter"] == 0


def test_shared_parameters_are_counted() -> None:
    """A layer that shares only some of its parameters is tied by their number."""
    first, later = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    later[0].weight = first.weight
    content = profile(
        {"a": first, "b": nn.Linear(4, 4), "c": later},
        nn.functional.mse_loss,
        sgd,
        (torch.randn(2, 4), torch.randn(2, 4)),
        repeats=1,
    )
    assert content["tied"] == [{"layers": ["a", "c"], "parameters": 16}]
    assert read_profile(content).parameters == 20 + 20 + 36 - 16


def test_the_state_of_an_optimizer_that_graphs_can_capture_is_measured() -> None:
    """Adam(capturable=True) makes no steps on a CPU, but has the state of every Adam."""

    def capturable(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, capturable=True)

    data = torch.randn(2, 4), torch.randn(2, 4)
    content = profile([nn.Linear(4, 4)], nn.functional.mse_loss, capturable, data, repeats=1)
    assert content["optimizer_bytes_per_parameter"] == 8


def test_the_model_is_left_as_it_was() -> None:
    """Weights, averages over samples and random numbers; no gradients are left behind."""
    layers = model()
    before = {key: value.clone() for key, value in nn.ModuleDict(layers).state_dict().items()}
    quick_profile(layers)
    after = nn.ModuleDict(layers).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(parameter.grad is None for layer in layers.values() for parameter in layer.parameters())


def test_samples_have_to_divide_the_batch(wording: Wording) -> None:
    """By default, 1, 2, 4 and 8, where they do."""
    layers: dict[str, nn.Module] = {"embed": nn.Embedding(50, 50)}
    assert quick_profile(layers, samples=None)["samples"] == [1, 2, 4, 8]
    with pytest.raises(PlanError) as refused:
        quick_profile(layers, samples=[3])
    wording(refused.value)


@pytest.mark.parametrize("samples", [[], [1.5], [True], [0]])
def test_samples_are_whole_numbers(samples: list[Any], wording: Wording) -> None:
    """At least one."""
    with pytest.raises(PlanError) as refused:
        quick_profile({"embed": nn.Embedding(50, 50)}, samples=samples)
    wording(refused.value)


def test_lines_of_progress_name_the_layer() -> None:
    """A line per layer."""
    lines: list[str] = []
    quick_profile(model(), report=lines.append)
    assert [line.split(",")[0] for line in lines] == [f"layer {number} of 4" for number in (1, 2, 3, 4)]
    assert "'inner'" in lines[1]


@pytest.mark.parametrize(
    "product",
    [
        "NVIDIA H100 80GB HBM3",
        "Tesla V100-SXM2-16GB",
        "NVIDIA A100-SXM4-80GB",
        "Tesla T4",
        "NVIDIA L40S",
        "NVIDIA A10G",
    ],
)
def test_worker_types_are_those_of_agents(product: str) -> None:
    """A profile names a type as the cluster does; a product without a known name has to be named."""
    assert worker_type_of(product) == gpus.worker_type_of(product)
    with pytest.raises(PlanError, match="GAVEL_WORKER_TYPE"):
        worker_type_of("Graphics Device")


# ------------------------------------------------------------------------------------------ in place of a training

SCRIPT = """
import torch
from gavel.training import LeasedIterator
from gavel.training.parallel import Pipeline

torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
pipe = Pipeline(layers, torch.nn.functional.mse_loss, lambda ps: torch.optim.Adam(ps), plan={plan!r})
batches = [(torch.ones(8, 4), torch.ones(8, 4))]
for batch in LeasedIterator(batches, checkpoint=pipe.checkpoint("checkpoints"), steps=5):
    pipe.step(batch)
    print("trained")
"""


def run_script(folder: Path, plan: str | None = None, **variables: str) -> Process:
    """Run the script with these variables until it ends."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(plan=plan))
    process = Process([str(script)], variables, folder / "output.txt", job_path(folder))
    process.wait()
    return process


def test_a_pipeline_profiles_instead_of_training(tmp_path: Path) -> None:
    """With GAVEL_PROFILE the first batch is profiled; the script's plan is not read, and no checkpoint is written."""
    path = tmp_path / "model.profile.json"
    variables: dict[str, Any] = {"GAVEL_PROFILE": str(path), "GAVEL_PROFILE_SAMPLES": "1,4"}
    process = run_script(tmp_path, plan="absent.json", GAVEL_WORKER_TYPE="v100", **variables)
    assert process.wait() == 0, process.text()
    assert "trained" not in process.text()
    content = json.loads(path.read_text())
    assert (content["model"], content["samples"]) == ("train", [1, 4])
    assert [list(layer["ms"]) for layer in content["layers"]] == [["v100"]] * 3
    assert not (tmp_path / "checkpoints").exists()
    # A second worker type is added to the first.
    assert run_script(tmp_path, GAVEL_WORKER_TYPE="a100", **variables).wait() == 0
    merged = json.loads(path.read_text())
    assert [list(layer["ms"]) for layer in merged["layers"]] == [["v100", "a100"]] * 3
    assert [layer["ms"]["v100"] for layer in merged["layers"]] == [
        layer["ms"]["v100"] for layer in content["layers"]
    ]
    # A type that is measured again has one source, the new one; a profile without a source takes one.
    del merged["source"]
    path.write_text(json.dumps(merged))
    for name in ("v100", "v100", "a100"):
        assert run_script(tmp_path, GAVEL_WORKER_TYPE=name, **variables).wait() == 0
    sources = json.loads(path.read_text())["source"].split("; ")
    assert [source.split(":")[0] for source in sources] == ["v100", "a100"]


@pytest.mark.parametrize(
    "case", ["another model", "no profile", "wrong source", "wrong samples", "several ranks"]
)
def test_what_cannot_be_profiled_is_refused(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Before anything is measured; a file that is there stays as it was."""
    monkeypatch.chdir(tmp_path)
    path = Path("model.profile.json")
    monkeypatch.setenv("GAVEL_PROFILE", str(path))
    if case == "another model":
        content = quick_profile(model())
        path.write_text(json.dumps(content))
    elif case == "no profile":
        path.write_text("{}")
    elif case == "wrong source":
        entries = [{"name": "0", "parameters": 20, "ms": {}}]
        path.write_text(json.dumps({"format": "gavel-profile/1", "source": 3, "layers": entries}))
    elif case == "wrong samples":
        monkeypatch.setenv("GAVEL_PROFILE_SAMPLES", "1,x")
    else:
        monkeypatch.setenv("WORLD_SIZE", "2")
    before = path.read_text() if path.exists() else None
    with pytest.raises(PlanError) as refused:
        Pipeline([nn.Linear(4, 4)], nn.functional.mse_loss, sgd).step((torch.ones(4, 4), torch.ones(4, 4)))
    wording(refused.value)
    assert (path.read_text() if path.exists() else None) == before


def test_importing_the_package_imports_no_torch() -> None:
    """Planners and the scheduler use its schedules."""
    code = "import sys, gavel.training.parallel; print('torch' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "False\n"
