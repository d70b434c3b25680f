"""Pictures of runs: completion times, time received against time promised, utilisation, and sweeps.

They are drawn without pyplot, so they need no display and leave no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gavel.cli.io.wording import shortened
from gavel.cli.policies.plot import FAINT, INK, LABEL, PALETTE, color_of, finish
from gavel.cli.simulation.plot_style import empty, legend, new_figure, save
from gavel.cli.simulation.time_scale import TimeScale, time_scale
from gavel.cli.simulation.timeline_plot import timeline_figure
from scheduler.sim.figures.gpu_time import Sample
from scheduler.sim.figures.job_table import HOUR_S
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.figures.summary import jct_hours

# The most steps of a line over time.
STEPS_MAX = 400
Floats = NDArray[np.float64]


def draw_run(metrics: Metrics, directory: str, title: str) -> list[str]:
    """Draw all pictures of one run, and return their paths."""
    pictures = {
        "jct": jct_figure({title: jct_hours(metrics)}),
        "timeline": timeline_figure(metrics, title),
        "shares": shares_figure(metrics, title),
        "utilisation": utilisation_figure({title: metrics}),
    }
    return [path for name, figure in pictures.items() for path in save(figure, directory, name)]


def jct_figure(jct_h: Mapping[str, Floats]) -> Figure:
    """Draw the fraction of jobs that completed within a given time, a curve per run, with its mean marked."""
    figure = new_figure(9.5, 4.2)
    axes = figure.subplots()
    for number, (name, hours) in enumerate(jct_h.items()):
        if not hours.size:
            continue
        ordered = np.sort(np.maximum(hours, 1e-3))
        color = PALETTE[number % len(PALETTE)]
        fraction = np.arange(1, len(ordered) + 1) / len(ordered)
        label = f"{shortened(name, 30)}: mean {hours.mean():,.2f} h"
        axes.plot(ordered, fraction, drawstyle="steps-post", color=color, label=label)
        axes.axvline(max(hours.mean(), 1e-3), color=color, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} h")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    if axes.lines:
        legend(axes)
    finish(axes, "jobs completed within a given time (dotted: mean)")
    return figure


def shares_figure(metrics: Metrics, title: str) -> Figure:
    """Draw a dot per job and type: the time that its allocations promised, and the time that it received."""
    figure = new_figure(6.8, 5.2)
    axes = figure.subplots()
    promised_h, received_h = metrics.jobs.allocated_s() / HOUR_S, metrics.jobs.received_s() / HOUR_S
    top = max(float(promised_h.max(initial=0.0)), float(received_h.max(initial=0.0)), 0.1) * 1.2
    axes.plot([0, top], [0, top], color=FAINT, linewidth=1.2, zorder=0)
    for kind, name in enumerate(metrics.jobs.worker_types):
        present = (promised_h[:, kind] > 0) | (received_h[:, kind] > 0)
        if present.any():
            axes.scatter(
                promised_h[present, kind],
                received_h[present, kind],
                s=12,
                alpha=0.7,
                linewidths=0,
                # In SVG, thousands of dots are one image.
                rasterized=True,
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
        legend(axes)
    finish(axes, f"time received by each job on each type, under {shortened(title, 30)}")
    return figure


def utilisation_figure(runs: Mapping[str, Metrics]) -> Figure:
    """Draw the GPUs in use over time by type, and below them the number of waiting jobs; a column per run.

    Each step is the exact mean over its time. If it covers several rounds, a faint band shows their minimum and
    maximum, so that short peaks are not averaged away. A long tail of the run is drawn compressed.
    """
    figure = new_figure(max(8.5, 5.6 * len(runs)), 5.0)
    panels = figure.subplots(2, max(len(runs), 1), sharex="col", squeeze=False, height_ratios=(3, 1))
    for number, (name, metrics) in enumerate(runs.items()):
        use, queue = panels[:, number]
        finish(queue, "waiting jobs, the most in each step")
        steps = utilisation_over_time(metrics)
        finish(use, f"GPUs in use, {shortened(name, 30)}{steps.scale.note}")
        if not len(steps.waiting):
            empty(figure, use, "no rounds")
            continue
        edges = steps.scale.places(steps.edges_h)
        for kind, worker_type in enumerate(metrics.gpus.worker_types):
            color, mean = color_of(kind), steps.mean[:, kind]
            use.stairs(
                steps.maximum[:, kind],
                edges,
                baseline=steps.minimum[:, kind],
                fill=True,
                color=color,
                alpha=0.18,
                linewidth=0,
            )
            label = shortened(worker_type, 18)
            use.stairs(mean, edges, baseline=None, color=color, linewidth=1.3, label=label)
        use.set_ylim(0, 1.03)
        use.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
        legend(use)
        queue.stairs(steps.waiting, edges, fill=True, color=FAINT)
        queue.set_ylim(bottom=0)
        for axes in (use, queue):
            steps.scale.mark(axes)
    return figure


def bars_figure(means_h: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw mean JCT as a bar per policy, with a dot per seed if there are several."""
    figure = new_figure(7.5, 1.2 + 0.42 * max(len(means_h), 2))
    axes = figure.subplots()
    for row, hours in enumerate(means_h.values()):
        mean = float(np.mean(hours))
        axes.barh(row, mean, height=0.62, color=PALETTE[row % len(PALETTE)])
        axes.text(mean, row, f" {mean:,.2f} h ", va="center", ha="left", **LABEL)
        if len(hours) > 1:
            axes.scatter(hours, [row] * len(hours), s=14, color=INK, linewidths=0, zorder=3)
    axes.set_yticks(range(len(means_h)), [shortened(name, 40) for name in means_h], **LABEL)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} h")
    finish(axes, title)
    return figure


def rates_figure(curves: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Figure:
    """Draw mean JCT over the rate of arrivals, a curve per policy."""
    figure = new_figure(9.5, 4.4)
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
        legend(axes)
    finish(axes, title)
    return figure


class Utilisation(NamedTuple):
    """The utilisation of a cluster: a row per step of time, a column per worker type, as fractions of its GPUs."""

    # The edges of the steps: one more entry than there are steps.
    edges_h: Floats
    mean: Floats
    # The minimum and maximum among the rounds of a step.
    minimum: Floats
    maximum: Floats
    # The greatest number of waiting jobs in any round of a step.
    waiting: Floats
    # The time axis, on which a long tail is compressed.
    scale: TimeScale


def utilisation_over_time(metrics: Metrics) -> Utilisation:
    """Return the utilisation from the first node to the last fact, in at most STEPS_MAX steps; NaN while there are no
    GPUs."""
    gpus, kinds = metrics.gpus, len(metrics.gpus.worker_types)
    if not gpus.samples:
        none = np.zeros((0, kinds))
        return Utilisation(np.zeros(0), none, none, none, np.zeros(0), TimeScale(0.0, 0.0, 0.0))
    first = Sample(gpus.samples[0].at_s if gpus.first_s is None else gpus.first_s, 0, 0, (), ())
    last = Sample(metrics.now_s, 0, 0, *gpus.totals(metrics.now_s))
    points = [first]
    for sample in (*gpus.samples, last):
        if sample.at_s > points[-1].at_s:
            points.append(sample)
        # A round at the very start replaces the first point.
        elif len(points) == 1:
            points = [sample]
    busy_s, capacity_s = np.zeros((len(points), kinds)), np.zeros((len(points), kinds))
    for row, point in enumerate(points):
        busy_s[row, : len(point.busy_s)] = point.busy_s
        capacity_s[row, : len(point.capacity_s)] = point.capacity_s
    at_s = np.array([point.at_s for point in points])
    scale = _time_scale(metrics, at_s[0] / HOUR_S, at_s[-1] / HOUR_S)
    # Rounding must not put the last edge behind the last point.
    evenly_s = np.minimum(scale.times_h(np.linspace(0.0, 1.0, STEPS_MAX + 1)) * HOUR_S, at_s[-1])
    edges = np.unique(np.searchsorted(at_s, evenly_s)) if len(at_s) > STEPS_MAX else np.arange(len(at_s))
    by_round = _fractions(np.diff(busy_s, axis=0), np.diff(capacity_s, axis=0))
    waiting = np.array([float(point.waiting) for point in points[:-1]])
    return Utilisation(
        at_s[edges] / HOUR_S,
        _fractions(np.diff(busy_s[edges], axis=0), np.diff(capacity_s[edges], axis=0)),
        np.fmin.reduceat(by_round, edges[:-1], axis=0) if len(by_round) else by_round,
        np.fmax.reduceat(by_round, edges[:-1], axis=0) if len(by_round) else by_round,
        np.maximum.reduceat(waiting, edges[:-1]) if len(waiting) else waiting,
        scale,
    )


def _time_scale(metrics: Metrics, start_h: float, end_h: float) -> TimeScale:
    """Return the scale of a run. Jobs that have not ended may run until its end."""
    return time_scale(
        start_h, np.nan_to_num(metrics.jobs.numbers("end_s") / HOUR_S, nan=end_h).tolist(), end_h
    )


def _fractions(busy_s: Floats, capacity_s: Floats) -> Floats:
    fractions = np.divide(busy_s, capacity_s, out=np.full(busy_s.shape, np.nan), where=capacity_s > 0)
    return np.asarray(np.minimum(fractions, 1.0))
