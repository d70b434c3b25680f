"""Values of the options of `gavel plan`: the shape of a transformer, levels of machines, worker types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault

if TYPE_CHECKING:
    from planner.chain import Level
    from planner.cluster import Gpu
    from planner.transformer import Transformer

# The keys of --gpt, and the fields of a transformer that they set.
SHAPE = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "seq": "sequence",
    "vocab": "vocabulary",
}
# The network card of each GPU, where there is one, in GB per second; other types share the network of a cloud instance.
CARDS_GB_PER_S = {"a100": 25.0, "h100": 50.0, "h200": 50.0}
# The part of its card that a GPU reaches in exchanges between nodes.
CARD_REACHED = 0.75
# How much more a GPU sends within its node than in an all-reduce of all GPUs, which traces.roofline_figures states.
LINK_OVER_ALL_REDUCE = 1.3


class Shape(click.ParamType):
    """The shape of a transformer: `layers=24,hidden=2304,heads=24,seq=2048,vocab=51200`."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """Return the numbers by field; all of them have to be given."""
        if isinstance(value, dict):
            return value
        numbers: dict[str, int] = {}
        for entry in value.split(","):
            key, _, text = (part.strip() for part in entry.partition("="))
            if key not in SHAPE or SHAPE[key] in numbers:
                self.fail(f"'{entry}' is not one of {', '.join(f'{key}=N' for key in SHAPE)}", param, ctx)
            if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
                self.fail(f"{key}: '{text[:20]}' is not a whole number", param, ctx)
            numbers[SHAPE[key]] = int(text)
        missing = [key for key, field in SHAPE.items() if field not in numbers]
        if missing:
            self.fail(f"{', '.join(missing)} missing", param, ctx)
        return numbers


class LevelValue(click.ParamType):
    """A level of machines and its bandwidth: `4:1e9`."""

    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Level:
        """Return the level."""
        from planner.chain import Level
        from planner.errors import BadCluster

        if isinstance(value, Level):
            return value
        machines, _, bandwidth = value.partition(":")
        try:
            return Level(int(machines), float(bandwidth))
        except BadCluster as error:
            self.fail(error.message, param, ctx)
        except (ValueError, OverflowError):
            self.fail(f"'{value}' is not MACHINES:BYTES_PER_SECOND, such as 4:1e9", param, ctx)


def transformer_of(shape: Mapping[str, int]) -> Transformer:
    """Return the transformer of this shape."""
    from planner.errors import BadProfile
    from planner.transformer import Transformer

    try:
        return Transformer(**shape)
    except BadProfile as error:
        raise Fault(f"--gpt: {error}") from None


def gpu_of(
    name: str, per_node: int, *, link_gb_per_s: float | None = None, network_gb_per_s: float | None = None
) -> Gpu:
    """Return a worker type of the bundled table as the planner sees it."""
    from planner.cluster import Gpu
    from traces.errors import nearest
    from traces.roofline_figures import WORKER_TYPES

    types = {kind.name: kind for kind in WORKER_TYPES if kind.name != "cpu"}
    kind = types.get(name)
    if kind is None:
        raise Fault(f"--cluster: '{name[:60]}' is not a known worker type; {nearest(name, types)}")
    if link_gb_per_s is None:
        link_gb_per_s = LINK_OVER_ALL_REDUCE * kind.link_gb_per_s
    if network_gb_per_s is None:
        card = CARDS_GB_PER_S.get(name)
        network_gb_per_s = kind.network_gb_per_s if card is None else CARD_REACHED * card
    return Gpu(
        name=name,
        flops_per_s=kind.peak_tflops * kind.sustained * 1e12,
        memory_bytes=kind.memory_gb * 1e9,
        memory_bytes_per_s=kind.bandwidth_gb_per_s * 1e9,
        link_bytes_per_s=link_gb_per_s * 1e9,
        network_bytes_per_s=network_gb_per_s * 1e9,
        per_node=per_node,
    )
