"""`gavel compare`: compare two results of `gavel simulate --json`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import JSON
from gavel.cli.io.outputs import print_data
from gavel.cli.io.wording import file_name

Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)] | None
# The types of the figures that are not numbers.
KINDS: dict[str, Any] = {
    "policy": str | None,
    "interrupted": bool | None,
    **dict.fromkeys(("utilization", "cluster"), dict[str, Number] | None),
}


@click.command()
@click.argument("a", type=click.Path(allow_dash=True))
@click.argument("b", type=click.Path(allow_dash=True))
@JSON
def compare(a: str, b: str, as_json: bool) -> None:
    """Compare two results of `gavel simulate --json`, with the ratio of B to A."""
    from rich.text import Text

    from gavel.cli.io.tables import print_all
    from gavel.cli.simulation.run_table import comparison_table, flat, ratio_of
    from scheduler.sim.figures.summary import INTERRUPTED

    if a == b == "-":
        raise Fault("A and B are both standard input, which can be read only once")
    first, second = read_figures(a), read_figures(b)
    if as_json:
        x, y = dict(flat(first)), dict(flat(second))
        ratio = {
            key.replace(" ", ":"): ratio_of(key, x.get(key), y.get(key)) for key in dict.fromkeys([*x, *y])
        }
        print_data({"a": first, "b": second, "ratio": ratio})
        return
    names = f"A: {Path(file_name(a)).name}", f"B: {Path(file_name(b)).name}"
    print_all(comparison_table(first, second, names))
    partial = [name for name, figures in (("A", first), ("B", second)) if figures.get(INTERRUPTED)]
    if partial:
        subject = f"{' and '.join(partial)} {'was' if len(partial) == 1 else 'were'} interrupted"
        print_all(Text(f"note: {subject}: the figures end there", "yellow"))
    different = [key for key in ("cluster", "jobs", "seed") if first.get(key) != second.get(key)]
    if different:
        print_all(
            Text(f"note: A and B differ in {', '.join(different)}, which may explain the rest", "yellow")
        )


def read_figures(name: str) -> dict[str, Any]:
    """Read the figures in a file, checked as far as the table needs."""
    from gavel.cli.io.document import read_document
    from protos.files.errors import BadInput, literal, suggest
    from scheduler.sim.figures.summary import INTERRUPTED, KEYS

    file = file_name(name)
    with refusing(BadInput, subject=file):
        data = read_document(name).data
    if type(data) is dict and type(data.get("figures")) is dict:
        # The file is a finished run of a sweep.
        data = data["figures"]
    if type(data) is not dict or not set(KEYS) & set(data):
        raise Fault(f"{file}: is not a result of `gavel simulate --json`")
    for key, value in data.items():
        if key not in (*KEYS, INTERRUPTED):
            raise Fault(f"{file}: {literal(key)} is not a figure; {suggest(key, KEYS)}")
        try:
            msgspec.convert(value, KINDS.get(key, Number))
        except msgspec.ValidationError:
            raise Fault(f"{file}: {key}: is not a value that `gavel simulate --json` writes there") from None
    return data
