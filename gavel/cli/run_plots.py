"""A run as pictures: how long jobs took, who was where when, shares against promises, how full the cluster was.

Drawn without pyplot: no display is needed and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gavel.cli.plot import FAINT, INK, LABEL, PALETTE, color_of, finish
from gavel.cli.wording import count_of, shortened
from scheduler.sim.job_table import HOUR_S
from scheduler.sim.metrics import Metrics
from scheduler.sim.summary import jct_hours

DPI = 130
TIME_BINS = 1600
GPUS_SHOWN = 240
POINTS_MAX = 400
Floats = NDArray[np.float64]


def draw_run(metrics: Metrics, directory: Path, title: str) -> list[str]:
    """All pictures of one run; their paths."""
    pictures = {
        "jct.png": jct_figure({title: jct_hours(metrics)}),
        "timeline.png": timeline_figure(metrics, title),
        "shares.png": shares_figure(metrics, title),
        "utilisation.png": utilisation_figure({title: metrics}),
    }
    for name, figure in pictures.items():
        figure.savefig(directory / name)
    return [str(directory / name) for name in pictures]


def jct_figure(jct_h: Mapping[str, Floats]) -> Figure:
    """The part of jobs that took at most so long, a curve per run, its mean marked."""
    figure = _figure(7.5, 4.2)
    axes = figure.subplots()
    for number, (name, hours) in enumerate(jct_h.items()):
        if not hours.size:
            continue
        ordered = np.sort(np.maximum(hours, 1e-3))
        color = PALETTE[number % len(PALETTE)]
        part = np.arange(1, len(ordered) + 1) / len(ordered)
        label = f"{shortened(name, 30)}: mean {hours.mean():,.2f} h"
        axes.plot(ordered, part, drawstyle="steps-post", color=color, label=label)
        axes.axvline(max(hours.mean(), 1e-3), color=color, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} h")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    if axes.lines:
        _legend(axes, "lower right")
    finish(axes, "jobs that were done within (dotted: mean)")
    return figure


def timeline_figure(metrics: Metrics, title: str) -> Figure:
    """A row per GPU, a colour per job; where two jobs share a GPU, both in half a row."""
    kinds, names = _gpu_rows(metrics)
    end_s = max((stretch.end_s for stretch in metrics.stretches), default=1.0)
    start_s = min((stretch.start_s for stretch in metrics.stretches), default=0.0)
    row_of = {name: row for row, name in enumerate(names)}
    picture = np.full((2 * max(len(names), 1), TIME_BINS, 3), 0.96)
    taken = np.zeros(picture.shape[:2], dtype=bool)
    scale = TIME_BINS / max(end_s - start_s, 1e-9)
    for stretch in metrics.stretches:
        columns = slice(
            int((stretch.start_s - start_s) * scale), int(np.ceil((stretch.end_s - start_s) * scale))
        )
        color = _color_of_job(stretch.job)
        for gpu in stretch.gpus:
            row = row_of.get(gpu)
            if row is not None:
                upper, lower = 2 * row, 2 * row + 1
                free = ~taken[upper, columns]
                picture[upper, columns][free] = color
                picture[lower, columns] = color
                taken[upper, columns] = True
    figure = _figure(11.0, 1.4 + min(7.0, 0.07 * len(names) + 1.0))
    axes = figure.subplots()
    hours = (start_s / HOUR_S, end_s / HOUR_S)
    axes.imshow(
        picture, aspect="auto", interpolation="nearest", extent=(*hours, max(len(names), 1), 0), resample=True
    )
    _mark_kinds(axes, kinds)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} h")
    shown = f"{count_of(len(names), 'GPU')}, {count_of(len({s.job for s in metrics.stretches}), 'job')}"
    finish(axes, f"who was where under {shortened(title, 40)}: {shown}, a colour each")
    return figure


def shares_figure(metrics: Metrics, title: str) -> Figure:
    """A dot per job and type: the time that its allocations promised, and the time that it had."""
    figure = _figure(5.6, 5.2)
    axes = figure.subplots()
    promised_h, received_h = metrics.jobs.allocated_s() / HOUR_S, metrics.jobs.received_s() / HOUR_S
    top = max(float(promised_h.max(initial=0.0)), float(received_h.max(initial=0.0)), 0.1) * 1.2
    axes.plot([0, top], [0, top], color=FAINT, linewidth=1.2, zorder=0)
    for kind, name in enumerate(metrics.jobs.worker_types):
        some = (promised_h[:, kind] > 0) | (received_h[:, kind] > 0)
        if some.any():
            axes.scatter(
                promised_h[some, kind],
                received_h[some, kind],
                s=12,
                alpha=0.7,
                linewidths=0,
                color=color_of(kind),
                label=shortened(name, 18),
            )
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_yscale("symlog", linthresh=0.1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda x, _: f"{x:g} h")
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_xlabel("share × time, summed over allocations", fontsize=9, color=INK)
    if axes.collections:
        _legend(axes, "upper left")
    finish(axes, f"time received by each job on each type, under {shortened(title, 30)}")
    return figure


def utilisation_figure(runs: Mapping[str, Metrics]) -> Figure:
    """GPUs in use over time by type, and below how many jobs wait; a column per run."""
    figure = _figure(max(7.5, 4.6 * len(runs)), 5.0)
    panels = figure.subplots(2, max(len(runs), 1), sharex="col", squeeze=False, height_ratios=(3, 1))
    for number, (name, metrics) in enumerate(runs.items()):
        use, queue = panels[:, number]
        hours, parts, waiting = _series(metrics)
        for kind, worker_type in enumerate(metrics.gpus.worker_types):
            use.plot(
                hours,
                parts[:, kind],
                drawstyle="steps-pre",
                color=color_of(kind),
                linewidth=1.3,
                label=shortened(worker_type, 18),
            )
        use.set_ylim(0, 1.03)
        use.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
        if use.lines:
            _legend(use, "lower right")
        finish(use, f"GPUs in use, {shortened(name, 30)}")
        queue.fill_between(hours, waiting, step="pre", color=FAINT)
        queue.set_ylim(bottom=0)
        queue.xaxis.set_major_formatter(lambda x, _: f"{x:g} h")
        finish(queue, "jobs that wait")
    return figure


def rates_figure(curves: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Figure:
    """Mean JCT over the rate of arrivals, a curve per policy."""
    figure = _figure(7.5, 4.4)
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        x, y = zip(*sorted(points), strict=True)
        axes.plot(
            x, y, marker="o", markersize=4, color=PALETTE[number % len(PALETTE)], label=shortened(name, 40)
        )
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}/h")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g} h")
    if axes.lines:
        _legend(axes, "upper left")
    finish(axes, title)
    return figure


def _series(metrics: Metrics) -> tuple[Floats, Floats, Floats]:
    """Hours, the part of each type in use until then, and jobs that waited; a few hundred points."""
    kinds, samples = len(metrics.gpus.worker_types), metrics.gpus.samples
    step = max(len(samples) // POINTS_MAX, 1)
    samples = samples[::step]
    if len(samples) < 2:
        return np.zeros(0), np.zeros((0, kinds)), np.zeros(0)
    busy_s, there_s = np.zeros((len(samples), kinds)), np.zeros((len(samples), kinds))
    for row, sample in enumerate(samples):
        busy_s[row, : len(sample.busy_s)] = sample.busy_s
        there_s[row, : len(sample.capacity_s)] = sample.capacity_s
    busy_s, there_s = np.diff(busy_s, axis=0), np.diff(there_s, axis=0)
    parts = np.divide(busy_s, there_s, out=np.full(busy_s.shape, np.nan), where=there_s > 0)
    hours = np.array([sample.at_s for sample in samples[1:]]) / HOUR_S
    return hours, parts, np.array([float(sample.waiting) for sample in samples[1:]])


def _gpu_rows(metrics: Metrics) -> tuple[dict[str, int], list[str]]:
    """GPUs that were used, by type, and how many rows each type takes; the first ones if there are too many."""
    by_kind: dict[str, set[str]] = {kind: set() for kind in metrics.gpus.worker_types}
    for stretch in metrics.stretches:
        by_kind[stretch.worker_type].update(stretch.gpus)
    used = {kind: sorted(gpus, key=_natural) for kind, gpus in by_kind.items() if gpus}
    each = max(GPUS_SHOWN // max(len(used), 1), 1)
    kept = {kind: gpus[:each] for kind, gpus in used.items()}
    return {kind: len(gpus) for kind, gpus in kept.items()}, [gpu for gpus in kept.values() for gpu in gpus]


def _natural(gpu: str) -> tuple[str, int]:
    node, _, index = gpu.rpartition(":")
    return node, int(index) if index.isdigit() else 0


def _mark_kinds(axes: Axes, kinds: Mapping[str, int]) -> None:
    ticks, labels, row = [], [], 0
    for kind, rows in kinds.items():
        ticks.append(row + rows / 2)
        labels.append(shortened(kind, 18))
        row += rows
        axes.axhline(row, color="white", linewidth=2)
    axes.set_yticks(ticks, labels, **LABEL)


def _color_of_job(job: str) -> tuple[float, ...]:
    number = sum((place + 1) * ord(character) for place, character in enumerate(job))
    base = colormaps["tab20"](number % 20)[:3]
    shade = 0.8 + 0.2 * (0.61803 * number % 1.0)
    return tuple(shade * part for part in base)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _legend(axes: Axes, where: Any) -> None:
    for text in axes.legend(fontsize=8.5, frameon=False, loc=where, labelcolor=INK).get_texts():
        text.set_parse_math(False)
