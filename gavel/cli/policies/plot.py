"""An answer as a picture: where each job runs, how fast relative to its isolated rate, and which GPUs are in use.

At most `BARS_MAX` jobs are drawn as bars with their names, more jobs as rows of a heat map, sorted by type.
The picture is drawn without pyplot, so it needs no display and leaves no global state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gavel.cli.io.wording import count_of, shortened
from gavel.cli.policies.answer import Answer
from policies.problem import Floats, Ints

FORMATS = (".png", ".svg", ".pdf")
BARS_MAX = 60
INK, FAINT = "#2b2f36", "#c9ced6"
# Distinct for colour-blind readers and in grey. `color_of` chooses the colours of further types.
PALETTE = ("#0f6fb5", "#e08a1e", "#2a9d77", "#c2578f", "#7a5fbd", "#8a8f98", "#b5452c", "#4fb4d8")
Style = dict[str, Any]
# Without math text, a dollar sign in a name is drawn as such.
LABEL: Style = {"fontsize": 9, "color": INK, "parse_math": False}


def draw_answer(answer: Answer) -> Figure:
    """Return the whole picture, ready to be saved."""
    n, t = len(answer.problem.jobs), len(answer.problem.worker_types)
    is_large = n > BARS_MAX
    height = 6.0 if is_large else max(2.4 + 0.24 * max(n, 1), 2.4 + 0.34 * t)
    figure = Figure(figsize=(11.5, height), dpi=150, layout="constrained")
    jobs, times, types = figure.subplots(1, 3, width_ratios=(5, 2, 2.6))
    (_draw_heat if is_large else draw_shares)(jobs, answer)
    (_draw_times_curve if is_large else draw_times_isolated)(times, answer)
    draw_utilisation(types, answer)
    gpus = count_of(round(float(answer.problem.capacity.sum())), "GPU")
    title = f"{shortened(answer.allocation.policy)}: {count_of(n, 'job')} on {gpus}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK, parse_math=False)
    return figure


def draw_shares(axes: Axes, answer: Answer, names: bool = True) -> None:
    """Draw a stacked bar per job, the first job on top; time on shared GPUs is hatched."""
    problem = answer.problem
    rows = np.arange(len(problem.jobs))
    start = np.zeros(len(rows))
    packed = answer.packed_by_type
    for kind in range(len(problem.worker_types)):
        alone = answer.share_by_type[:, kind] - packed[:, kind]
        for width, hatch in ((alone, ""), (packed[:, kind], "////")):
            if width.any():
                axes.barh(
                    rows,
                    width,
                    0.74,
                    start,
                    color=color_of(kind),
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0.4,
                )
            start += width
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    labels = [_job_label(answer, row) for row in range(len(rows))] if names else []
    axes.set_yticks(rows if names else [], labels, **LABEL)
    hatched = ", hatched: shares its GPUs" if packed.any() else ""
    finish(axes, f"share of time by type{hatched}", share_axis=True)


def draw_times_isolated(axes: Axes, answer: Answer) -> None:
    """Draw a dot per job beside its bar: its rate relative to its isolated rate."""
    times = answer.times_isolated
    rows = np.arange(len(times))
    axes.axvline(1.0, color=FAINT, linewidth=1.2, zorder=0)
    axes.hlines(rows, 1.0, times, color=FAINT, linewidth=1.0, zorder=1)
    axes.scatter(times, rows, s=20, color=[INK if x >= 1.0 - 1e-6 else "#b5452c" for x in times], zorder=2)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xlim(0, max(1.6, 1.1 * _greatest(times)))
    finish(axes, "rate against isolated (×)")


def draw_utilisation(axes: Axes, answer: Answer, slots: int = 8) -> None:
    """Draw a bar per type in its colour; this is also the legend. The panel has space for at least `slots` bars."""
    problem = answer.problem
    kinds = range(len(problem.worker_types))
    use = np.nan_to_num(answer.utilisation)
    axes.barh(list(kinds), [1.0] * len(kinds), 0.62, color="#eef0f3")
    axes.barh(list(kinds), use, 0.62, color=[color_of(kind) for kind in kinds])
    for kind in kinds:
        inside = use[kind] > 0.25
        axes.text(
            use[kind] - 0.02 if inside else use[kind] + 0.02,
            kind,
            f"{use[kind]:.0%}" + (" binding" if inside and use[kind] > 0.6 and answer.binding[kind] else ""),
            ha="right" if inside else "left",
            va="center",
            fontsize=8,
            color="white" if inside else INK,
        )
    labels = [
        f"{shortened(name, 18)} ({problem.capacity[kind]:g})"
        for kind, name in enumerate(problem.worker_types)
    ]
    axes.set_yticks(list(kinds), labels, **LABEL)
    axes.set_xlim(0, 1)
    axes.set_ylim(max(len(kinds), slots) - 0.4, -0.6)
    finish(axes, "GPUs in use", share_axis=True)


def _draw_heat(axes: Axes, answer: Answer) -> None:
    problem, shares = answer.problem, answer.share_by_type
    picture = np.ones((len(shares), len(problem.worker_types), 3))
    for kind in range(len(problem.worker_types)):
        ink = np.array(to_rgb(color_of(kind)))
        picture[:, kind, :] -= shares[_by_main_type(shares), kind, None].clip(0, 1) * (1.0 - ink)
    axes.imshow(picture, aspect="auto", interpolation="nearest", resample=True)
    names = [shortened(name, 18) for name in problem.worker_types]
    axes.set_xticks(range(len(names)), names, **LABEL)
    axes.set_yticks([])
    axes.set_ylabel(f"{count_of(len(shares), 'job')}, sorted by where they run", fontsize=9, color=INK)
    finish(axes, "share of time on each type (full colour: all of it)")


def _draw_times_curve(axes: Axes, answer: Answer) -> None:
    times = np.sort(answer.times_isolated[~np.isnan(answer.times_isolated)])
    axes.axvline(1.0, color=FAINT, linewidth=1.2)
    axes.plot(times, np.arange(1, len(times) + 1) / max(len(times), 1), color=INK, drawstyle="steps-post")
    axes.set_ylim(0, 1)
    axes.set_xlim(0, max(1.6, 1.1 * _greatest(times)))
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    finish(axes, "jobs at or below × isolated")


def finish(axes: Axes, title: str, share_axis: bool = False) -> None:
    """Give a panel the common style."""
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=INK)
    if share_axis:
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])


def color_of(kind: int) -> Any:
    """Return the colour of a worker type by its index in the problem."""
    if kind < len(PALETTE):
        return PALETTE[kind]
    return tuple(colormaps["hsv"](0.61803 * kind % 1.0)[:3])


def _job_label(answer: Answer, row: int) -> str:
    gpus = answer.problem.jobs.gpus[row]
    return shortened(answer.problem.jobs.ids[row], 28) + (f"  ×{gpus}" if gpus > 1 else "")


def _by_main_type(shares: Floats) -> Ints:
    """Return the rows by the type on which they mostly run, the highest share first; idle rows come last."""
    main = shares.argmax(axis=1)
    idle = shares.sum(axis=1) <= 0
    return np.lexsort((-shares.max(axis=1), main, idle))


def _greatest(times: Floats) -> float:
    finite = times[np.isfinite(times)]
    return float(finite.max()) if finite.size else 1.0
