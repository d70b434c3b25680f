"""The timeline of a run: a row per GPU, a colour per job, names on long stretches; a long tail is drawn compressed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gavel.cli.io.wording import count_of, shortened
from gavel.cli.policies.plot import INK, LABEL, finish
from gavel.cli.simulation.plot_style import empty, new_figure
from gavel.cli.simulation.time_scale import TimeScale, time_scale
from scheduler.sim.figures.job_table import HOUR_S
from scheduler.sim.figures.metrics import STRETCHES_MAX, Metrics, Stretch

TIME_BINS = 1600
GPUS_SHOWN = 240
LABELS_MAX = 48
# The most names of jobs in the picture, and the characters of each.
NAMES_MAX, NAME_CHARACTERS = 200, 24
# The width of a letter, and the height of a line, at the size of these names, in inches.
FONT_SIZE, LETTER_IN, LINE_IN = 5.5, 0.048, 0.09
WIDTH_IN, MARGINS_IN = 11.0, 2.2
Floats = NDArray[np.float64]


def timeline_figure(metrics: Metrics, title: str) -> Figure:
    """Draw a row per GPU and a colour per job; two jobs that share a GPU have half a row each."""
    rows, count = _gpu_rows(metrics)
    gpus = [gpu for gpus in rows.values() for gpu in gpus]
    stretches = metrics.stretches_so_far()
    height_in = 1.6 + min(7.0, 0.13 * len(gpus) + 1.0)
    figure = new_figure(WIDTH_IN, height_in)
    axes = figure.subplots()
    heading = f"jobs on each GPU under {shortened(title, 40)}: {_caption(stretches, len(gpus), count)}"
    if not stretches:
        finish(axes, heading)
        return empty(figure, axes, "no leases")
    scale, job_names = _time_scale(stretches), _job_names(metrics)
    finish(axes, f"{heading}{scale.note}\n{_longest(stretches, job_names)}")
    axes.title.set_parse_math(False)
    axes.imshow(
        _painted(stretches, gpus, scale),
        aspect="auto",
        interpolation="nearest",
        extent=(0.0, 1.0, len(gpus), 0),
        resample=True,
    )
    _mark_kinds(axes, rows)
    _name_gpus(axes, gpus)
    _name_jobs(axes, stretches, gpus, scale, job_names, (height_in - 1.0) / len(gpus))
    scale.mark(axes)
    return figure


def _time_scale(stretches: Sequence[Stretch]) -> TimeScale:
    """Return the scale for these stretches."""
    ends_h: dict[str, float] = {}
    for stretch in stretches:
        ends_h[stretch.job] = max(ends_h.get(stretch.job, 0.0), stretch.end_s / HOUR_S)
    start_h = min(stretch.start_s for stretch in stretches) / HOUR_S
    return time_scale(start_h, list(ends_h.values()), max(ends_h.values()))


def _caption(stretches: Sequence[Stretch], rows: int, count: int) -> str:
    caption = f"{count_of(count, 'GPU')}, {count_of(len({s.job for s in stretches}), 'job')}, a colour each"
    if rows < count:
        caption += f"; {rows} of the GPUs are shown"
    if len(stretches) >= STRETCHES_MAX:
        caption += f"; the first {STRETCHES_MAX:,} leases"
    return caption


def _longest(stretches: Sequence[Stretch], job_names: Mapping[str, str]) -> str:
    """Return which jobs ran longest: `ran longest: chat 5.2 h, train 3.1 h`."""
    hours: defaultdict[str, float] = defaultdict(float)
    for stretch in stretches:
        hours[stretch.job] += (stretch.end_s - stretch.start_s) / HOUR_S
    listed = [
        f"{shortened(job_names.get(job, job), NAME_CHARACTERS)} {hours[job]:,.3g} h"
        for job in sorted(hours, key=lambda job: -hours[job])[:3]
    ]
    return f"ran longest: {', '.join(listed)}"


def _job_names(metrics: Metrics) -> dict[str, str]:
    """Return the name of each job, or its id if it has none."""
    return {job: name or job for job, name in zip(metrics.jobs.ids, metrics.jobs.names, strict=True)}


def _painted(stretches: Sequence[Stretch], names: Sequence[str], scale: TimeScale) -> Floats:
    """Return an image of two pixel rows per GPU; time without a job is grey."""
    row_of = {name: row for row, name in enumerate(names)}
    picture = np.full((2 * len(names), TIME_BINS, 3), 0.96)
    painted = np.zeros(picture.shape[:2], dtype=bool)
    for stretch in stretches:
        left, right = (scale.place(time_s / HOUR_S) for time_s in (stretch.start_s, stretch.end_s))
        columns = slice(int(left * TIME_BINS), int(np.ceil(right * TIME_BINS)))
        color = _color_of_job(stretch.job)
        for gpu in stretch.gpus:
            row = row_of.get(gpu)
            if row is not None:
                upper, lower = 2 * row, 2 * row + 1
                free = ~painted[upper, columns]
                picture[upper, columns][free] = color
                picture[lower, columns] = color
                painted[upper, columns] = True
    return picture


def _name_jobs(
    axes: Axes,
    stretches: Sequence[Stretch],
    gpus: Sequence[str],
    scale: TimeScale,
    job_names: Mapping[str, str],
    row_in: float,
) -> None:
    """Write the name of each job into the largest of its blocks, if it fits there."""
    named: set[str] = set()
    for area, job, left, right, first, last in sorted(_blocks(stretches, gpus, scale), reverse=True):
        name = shortened(job_names.get(job, job), NAME_CHARACTERS)
        fits = (right - left) * (WIDTH_IN - MARGINS_IN) >= (len(name) + 1) * LETTER_IN
        if area <= 0 or not fits or (last - first + 1) * row_in < LINE_IN or job in named:
            continue
        named.add(job)
        color = "white" if sum(_color_of_job(job)) < 1.7 else INK
        axes.text(
            (left + right) / 2,
            (first + last + 1) / 2,
            name,
            ha="center",
            va="center",
            fontsize=FONT_SIZE,
            color=color,
            parse_math=False,
            clip_on=True,
        )
        if len(named) == NAMES_MAX:
            return


def _blocks(
    stretches: Sequence[Stretch], gpus: Sequence[str], scale: TimeScale
) -> Iterator[tuple[float, str, float, float, int, int]]:
    """Yield the area, job, left and right place, first and last row of each block of neighbouring GPUs.

    GPUs that another job shares are left out, because their lower half has another colour.
    """
    row_of = {name: row for row, name in enumerate(gpus)}
    shared = _shared(stretches)
    for number, stretch in enumerate(stretches):
        left, right = (scale.place(time_s / HOUR_S) for time_s in (stretch.start_s, stretch.end_s))
        rows = sorted(row_of[gpu] for gpu in stretch.gpus if gpu in row_of and (gpu, number) not in shared)
        for run in np.split(np.array(rows, dtype=int), np.flatnonzero(np.diff(rows) > 1) + 1):
            if run.size:
                yield (right - left) * run.size, stretch.job, left, right, int(run[0]), int(run[-1])


def _shared(stretches: Sequence[Stretch]) -> set[tuple[str, int]]:
    """Return the GPUs of each stretch, by its number, that another job uses during part of it."""
    latest: dict[str, int] = {}
    shared = set()
    for number in sorted(range(len(stretches)), key=lambda number: stretches[number].start_s):
        for gpu in stretches[number].gpus:
            before = latest.get(gpu)
            if before is not None and stretches[number].start_s < stretches[before].end_s:
                shared |= {(gpu, before), (gpu, number)}
            if before is None or stretches[number].end_s > stretches[before].end_s:
                latest[gpu] = number
    return shared


def _gpu_rows(metrics: Metrics) -> tuple[dict[str, list[str]], int]:
    """Return the GPUs of each type, ordered by name, at most GPUS_SHOWN in all; and the number of all GPUs."""
    by_kind = {kind: set(gpus) for kind, gpus in metrics.gpu_names().items()}
    # Leases may name GPUs of nodes without a fact about their joining.
    for stretch in metrics.stretches_so_far():
        by_kind.setdefault(stretch.worker_type, set()).update(stretch.gpus)
    by_type = {kind: sorted(gpus, key=_natural) for kind, gpus in by_kind.items() if gpus}
    limit = max(GPUS_SHOWN // max(len(by_type), 1), 1)
    return {kind: gpus[:limit] for kind, gpus in by_type.items()}, sum(map(len, by_type.values()))


def _natural(gpu: str) -> list[tuple[int, str]]:
    """Return a sort key that puts `a-2:10` before `a-10:2`."""
    return [(int(text), "") if text.isdecimal() else (-1, text) for text in re.split(r"(\d{1,18})", gpu)]


def _mark_kinds(axes: Axes, rows: Mapping[str, Sequence[str]]) -> None:
    """Draw white lines between types, and their names on the right."""
    row = 0
    for kind, gpus in rows.items():
        axes.text(
            1.005,
            row + len(gpus) / 2,
            shortened(kind, 18),
            transform=axes.get_yaxis_transform(),
            va="center",
            **LABEL,
        )
        row += len(gpus)
        axes.axhline(row, color="white", linewidth=2)


def _name_gpus(axes: Axes, names: Sequence[str]) -> None:
    """Write the name of every GPU; if there are too many, of every node, or of as many as fit."""
    if len(names) <= LABELS_MAX:
        labels = {shortened(name, 24): row + 0.5 for row, name in enumerate(names)}
    else:
        of_node: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            of_node.setdefault(name.rpartition(":")[0], []).append(row)
        step = -(-len(of_node) // LABELS_MAX)
        labels = {
            shortened(node, 24): (rows[0] + rows[-1] + 1) / 2 for node, rows in list(of_node.items())[::step]
        }
    axes.set_yticks(list(labels.values()), list(labels), fontsize=6, color=INK, parse_math=False)
    axes.tick_params(axis="y", labelsize=6)


def _color_of_job(job: str) -> tuple[float, ...]:
    number = sum(position * ord(character) for position, character in enumerate(job, 1))
    base = colormaps["tab20"](number % 20)[:3]
    shade = 0.8 + 0.2 * (0.61803 * number % 1.0)
    return tuple(shade * channel for channel in base)
