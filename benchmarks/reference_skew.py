"""The reference answers about skewed data, for `python -m benchmarks.reference training FILE`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from benchmarks.reference_checks import Check, NotChecked


def check_case(case: dict[str, Any]) -> Iterator[Check | NotChecked]:
    """Check one case of the part `skew`. What the case calls recalled stays so in the name of the check."""
    name, inputs, expected = case["id"], case["inputs"], case["expected"]
    if case["tolerance"] == "anchor":
        yield NotChecked(
            name, f"a published figure, to stand beside ours ({case.get('confidence', 'unknown')})"
        )
    elif importlib.util.find_spec("torch") is None:
        yield NotChecked(name, "PyTorch is not installed (the extra 'train')")
    elif name.startswith("dgc-sparsity-"):
        yield _sparsity(name, inputs, expected, case["tolerance"]["sent"])
    elif name.startswith("skew-objective-"):
        yield from _objective(name, inputs, expected, case["tolerance"]["objective"])
    elif name.startswith("law-"):
        yield from _law(name, inputs, case["tolerance"]["max_difference_of_parameters"])
    else:
        yield NotChecked(name, "a measurement of other code; `python -m benchmarks.skew` measures ours")


def _sparsity(name: str, inputs: dict[str, Any], expected: dict[str, Any], allowed: float) -> Check:
    """Values that DGC sends in an epoch of its warm-up."""
    from gavel.training.decentral.dgc import sparsity_at, values_sent

    sent = values_sent(inputs["values"], sparsity_at(inputs["warmup_epoch"]))
    return Check(f"{name} sent", expected["sent"], sent, allowed / expected["sent"])


def _objective(
    name: str, inputs: dict[str, Any], expected: dict[str, Any], allowed: float
) -> Iterator[Check | NotChecked]:
    """The objective of SkewScout (recalled, unverified), and the theta with the least of it."""
    from gavel.training.decentral.scout import objective

    weights = inputs["lambda_al"], inputs["lambda_c"], inputs["sigma_al"]
    values = [
        objective(loss, part, *weights)
        for loss, part in zip(inputs["accuracy_loss"], inputs["communication"], strict=True)
    ]
    for theta, value, answer in zip(inputs["theta"], expected["objective"], values, strict=True):
        yield Check(f"{name} theta {theta:g} (recalled)", value, answer, max(allowed / value, 1e-9))
    chosen = inputs["theta"][values.index(min(values))]
    yield Check(f"{name} chosen", expected["chosen"], chosen, 0.0)


def _law(name: str, inputs: dict[str, Any], allowed: float) -> Iterator[Check | NotChecked]:
    """The greatest difference of weights from bulk-synchronous SGD."""
    from benchmarks.rank_threads import run_ranks
    from benchmarks.skew_laws import LAWS

    way = next((way for way in LAWS if name.startswith(f"law-{way}")), None)
    if way is None:
        yield NotChecked(name, "this release knows no such law")
        return
    ranks = inputs["partitions"]
    weights, bulk = run_ranks(ranks, LAWS[way]), run_ranks(ranks, LAWS["bsp"])
    difference = max(float((own - bulk[0]).abs().max()) for own in weights)
    yield Check(f"{name}: difference", 0.0, difference, allowed)
