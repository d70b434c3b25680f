"""The answer of a probe in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gavel.client.views.units import count_of

_LOADING = {
    "in turn": "the loop loads its own data",
    "workers": "loaded by workers while the model computes",
    "pipelined": "loaded while the model computes",
}


def probe_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that say how a script spends its time, and what would make it faster."""
    workers = answer["workers"]
    with_workers = f", {count_of(workers, 'worker')}" if workers else ""
    yield f"{answer['rates']['real']:.4g} steps/s, {_LOADING[answer['loading']]}{with_workers}"
    for key, name in (
        ("busy", "computes"),
        ("prep", "waits for preparation"),
        ("fetch", "waits for reading"),
    ):
        yield f"  {name:<24}{answer[key]:>6.1%}"
    yield ""
    for change in answer["what_if"]:
        yield f"  {change_words(change, answer):<40}{change['rate']:>10.4g} steps/s{change['speedup']:>8.2f} x"
    if 0 < answer["cache_needed"] < 1:
        yield f"  with {answer['cache_needed']:.0%} of the data in the cache, reading slows nothing"
    yield ""
    best = answer["best"]
    yield (
        "helps most: nothing; faster data would make it less than 5 % faster"
        if best is None
        else f"helps most: {change_words(best, answer)}, {best['speedup']:.2f} x as fast"
    )
    if answer["cpu_scaling"] < 0.9:
        yield f"a further CPU prepares only {answer['cpu_scaling']:.0%} of what the first ones do"
    yield cold_words(answer["cold"])


def change_words(change: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Return a change in words."""
    to = change["to"]
    if change["change"] == "disk":
        return f"a disk {to:g} x as fast"
    if change["change"] == "cache":
        return f"{to:.0%} of the data in the cache"
    if answer["loading"] == "in turn":
        return f"{count_of(int(to), 'worker')} on as many CPUs"
    unit = " and workers" if answer["workers"] else ""
    return f"{to:g} CPUs{unit} instead of {answer['cpus']:g}"


def cold_words(cold: Mapping[str, Any]) -> str:
    """Return how certain it is that the real data came from the disk."""
    dropped = (
        f"{count_of(cold['dropped'], 'file')} dropped from the page cache"
        if cold["dropped"]
        else "no file was dropped from the page cache (--data names them)"
    )
    if cold["from_storage"] is None:
        return f"reading: {dropped}; how much came from the disk is unknown"
    fetched = f", for samples of {cold['fetched'] / 1e6:.3g} MB" if cold["fetched"] else ""
    return f"reading: {dropped}; {cold['from_storage'] / 1e6:.3g} MB came from the disk{fetched}"
