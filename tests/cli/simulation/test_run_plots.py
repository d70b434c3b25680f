"""Pictures of runs show every GPU by name, leases that still run, and exact use instead of samples."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage, imread

from gavel.cli.simulation.run_plots import (
    STEPS_MAX,
    bars_figure,
    draw_run,
    jct_figure,
    rates_figure,
    shares_figure,
    utilisation_figure,
    utilisation_over_time,
)
from gavel.cli.simulation.time_scale import time_scale
from gavel.cli.simulation.timeline_plot import LABELS_MAX, timeline_figure
from tests.support.story import Story, lease

# The grey of an idle GPU.
IDLE = 0.96


def labels(figure: Figure) -> list[str]:
    """Return the names beside the rows."""
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def picture(figure: Figure) -> np.ndarray:
    """Return the pixels: rows (two to a GPU) × time × colour."""
    image = next(child for child in figure.axes[0].get_children() if isinstance(child, AxesImage))
    return np.asarray(image.get_array())


def drawn(figure: Figure) -> RendererAgg:
    """Draw a figure, so that its layout is made; return the renderer, in whose coordinates places are compared."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


@pytest.fixture
def story() -> Story:
    """Two nodes of two GPUs; a runs from 0 to 2 h on one GPU of b-10, c runs on the other GPU and started at 3 h."""
    story = Story()
    story.node(0.0, "b-10", "v100", gpus=2)
    story.node(0.0, "b-9", "v100", gpus=2)
    story.submit(0.0, "a")
    story.submit(0.0, "c")
    story.run(0.0, 2.0, lease("1", "a", "v100", "b-10:0"), 1.0, "finished")
    story.plan(3.0, lease("2", "c", "v100", "b-10:1"))
    story.start(3.0, "2")
    story.plan(4.0)
    return story


def test_every_gpu_has_its_name_used_or_not(story: Story) -> None:
    """GPUs of an idle node are shown too, sorted by their numbers."""
    figure = timeline_figure(story.metrics, "las")
    assert labels(figure) == ["b-9:0", "b-9:1", "b-10:0", "b-10:1"]
    assert "4 GPUs, 2 jobs" in figure.axes[0].get_title(loc="left")
    rows = picture(figure).min(axis=(1, 2))
    assert (rows[:4] == IDLE).all()
    assert (rows[4:] < IDLE).all()


def test_a_lease_that_runs_on_is_not_idle(story: Story) -> None:
    """The GPU of a lease that still runs is busy up to the end of the picture."""
    last = picture(timeline_figure(story.metrics, "las"))[:, -1].min(axis=1)
    assert (last[4:6] == IDLE).all()
    assert (last[6:] < IDLE).all()
    assert len(story.metrics.stretches) == 1, "looking at them does not end them"


def test_many_gpus_are_named_by_their_nodes() -> None:
    """If there is no room for a label at each GPU, the labels are names of nodes, as many as fit."""
    story = Story()
    for node in range(60):
        story.node(0.0, f"n{node}", "v100", gpus=4)
    story.submit(0.0, "a")
    story.run(0.0, 1.0, lease("1", "a", "v100", "n0:0"), 1.0, "finished")
    assert labels(timeline_figure(story.metrics, "las")) == [f"n{node}" for node in range(0, 60, 2)]
    assert LABELS_MAX >= 30


def test_no_leases_no_timeline(tmp_path: Path) -> None:
    """The picture of an ideal run reports that it has no leases, instead of showing an idle cluster."""
    story = Story()
    story.node(0.0, "n", "v100")
    figure = timeline_figure(story.metrics, "las")
    figure.savefig(tmp_path / "timeline.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["no leases"]
    assert [text.get_text() for text in utilisation_figure({"las": story.metrics}).axes[0].texts] == [
        "no rounds"
    ]


def test_use_goes_from_the_first_node_to_the_last_fact(story: Story) -> None:
    """One of four GPUs is used for two hours of three, then one for one hour: the mean is exact."""
    use = utilisation_over_time(story.metrics)
    assert use.edges_h.tolist() == [0.0, 3.0, 4.0]
    assert use.mean[:, 0].tolist() == pytest.approx([2 / 12, 1 / 4])


def test_a_short_dip_among_thousands_of_rounds_is_visible() -> None:
    """The mean of a step is exact over its rounds, and its band reaches down to the dip."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.submit(0.0, "a")
    story.plan(0.0, lease("1", "a", "v100", "n:0"))
    story.start(0.0, "1")
    for number in range(1, 2000):
        if number == 1000:
            story.close(number / 10, "1", steps=1.0, ran_h=100.0, outcome="yielded")
            story.plan(number / 10, lease("2", "a", "v100", "n:0"))
        elif number == 1001:
            story.plan(number / 10)
            story.start(number / 10, "2")
        else:
            story.plan(number / 10)
    use = utilisation_over_time(story.metrics)
    assert len(use.edges_h) <= STEPS_MAX + 1
    assert (use.edges_h[0], use.edges_h[-1]) == (0.0, pytest.approx(199.9))
    (dip,) = np.flatnonzero(use.minimum[:, 0] < 0.5)
    assert use.minimum[dip, 0] == pytest.approx(0.0)
    assert use.maximum[dip, 0] == pytest.approx(1.0)
    hours = np.diff(use.edges_h)
    assert (1 - use.mean[dip, 0]) * hours[dip] == pytest.approx(0.1)
    assert (use.mean[:, 0] * hours).sum() == pytest.approx(199.8)


def test_bars_have_the_mean_and_a_dot_per_seed() -> None:
    """A sweep over one rate is drawn as bars of the mean with a dot for each seed."""
    axes = bars_figure({"las": [1.0, 3.0], "fifo": [4.0]}, "title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [2.0, 4.0]
    assert [len(dots.get_offsets()) for dots in axes.collections] == [2]


@pytest.mark.parametrize(
    ("ends_h", "knee_h"),
    [
        ([5.0], 5.0),
        ([1.0, 2.0, 3.0], 3.0),
        ([1.0, 2.0, 60.0], 2.0),
        ([*[1.0] * 38, 9.0, 9.0], 1.0),
        ([2.0, 9.0, 9.0], 9.0),
    ],
)
def test_a_long_tail_is_compressed(ends_h: list[float], knee_h: float) -> None:
    """If the last twentieth of the jobs, or the last one, would take a third of the width, it gets a seventh."""
    scale = time_scale(0.0, ends_h, max(ends_h))
    assert (scale.knee_h, scale.end_h) == (knee_h, max(ends_h))
    assert [scale.place(0.0), scale.place(scale.end_h)] == [0.0, 1.0]
    if scale.is_compressed:
        assert scale.place(knee_h) == pytest.approx(0.85)
        assert scale.ticks()[-1] == scale.end_h
        assert scale.times_h(np.array([0.0, 0.85, 1.0])).tolist() == pytest.approx([0.0, knee_h, scale.end_h])


def test_pictures_over_time_share_the_compressed_axis() -> None:
    """One job of twenty that runs for ten times as long leaves the others most of the width, in both pictures."""
    story = Story()
    for job in range(20):
        story.node(0.0, f"n{job}", "v100")
        story.submit(0.0, str(job))
        end_h = 20.0 if job == 19 else 2.0
        story.run(0.0, end_h, lease(str(job), str(job), "v100", f"n{job}:0"), 1.0, "finished")
    for figure in (utilisation_figure({"las": story.metrics}), timeline_figure(story.metrics, "las")):
        drawn(figure)
        axes = figure.axes[-1]
        marks = {text.get_text(): text.get_position()[0] for text in axes.get_xticklabels()}
        assert (marks["2 h"], marks["20 h"]) == pytest.approx((0.85, 1.0))
        assert "compressed after 2 h" in figure.axes[0].get_title(loc="left")


def test_jobs_are_named_where_there_is_room(story: Story) -> None:
    """A long stretch has its job's name in it, once, inside the stretch; the heading has the jobs that ran longest."""
    story.submit(4.0, "short")
    story.run(4.0, 4.01, lease("9", "short", "v100", "b-9:0"), 1.0, "finished")
    figure = timeline_figure(story.metrics, "las")
    renderer = drawn(figure)
    axes = figure.axes[0]
    names = {text.get_text(): text for text in axes.texts}
    assert set(names) == {"a", "c", "v100"}
    assert "ran longest: a 2 h, c" in axes.get_title(loc="left")
    box = names["a"].get_window_extent(renderer).transformed(axes.transData.inverted())
    assert 0.0 <= box.x0 < box.x1 <= time_scale(0.0, [2.0, 4.01], 4.01).place(2.0)
    assert sorted((box.y0, box.y1)) == pytest.approx([2.5, 2.5], abs=0.5)


def test_a_shared_gpu_has_no_name() -> None:
    """Two jobs that share a GPU have half a row each, which is too low for a name."""
    story = Story()
    story.node(0.0, "n", "v100")
    for job in ("first", "second"):
        story.submit(0.0, job)
        story.run(0.0, 3.0, lease(job, job, "v100", "n:0"), 1.0, "finished")
    assert [text.get_text() for text in timeline_figure(story.metrics, "las").axes[0].texts] == ["v100"]


def test_a_name_is_no_formula_and_not_endless() -> None:
    """A dollar sign is drawn as such, and a very long name is shortened."""
    story = Story()
    story.node(0.0, "n", "v100")
    name = "$x_1$ " + "n" * 300
    story.submit(0.0, name)
    story.run(0.0, 1.0, lease("1", name, "v100", "n:0"), 1.0, "finished")
    figure = timeline_figure(story.metrics, "$las$")
    drawn(figure)
    (label, _) = sorted((text.get_text() for text in figure.axes[0].texts), key=len, reverse=True)
    assert (len(label), label[:5], label[-1]) == (24, "$x_1$", "…")


def test_legends_cover_no_data(story: Story) -> None:
    """Every legend lies beside its axes, however many entries it has and however long they are."""
    many = {f"policy(parameter={number})+with+a+long+name": np.arange(1.0, 9.0) for number in range(12)}
    curves = {name: [(1.0, 2.0), (2.0, 3.0)] for name in many}
    figures = [
        *(jct_figure(many), rates_figure(curves, "title"), utilisation_figure({"las": story.metrics})),
        shares_figure(story.metrics, "las"),
    ]
    for figure in figures:
        renderer = drawn(figure)
        for axes in figure.axes:
            legend = axes.get_legend()
            if legend is not None:
                box = legend.get_window_extent(renderer)
                assert not box.overlaps(axes.get_window_extent(renderer))
                assert box.x1 <= figure.bbox.x1, "and within the picture"
    assert sum(axes.get_legend() is not None for figure in figures for axes in figure.axes) == 4


def test_pictures_are_written_as_png_and_as_svg(story: Story, tmp_path: Path) -> None:
    """Both formats can be read; an SVG is well-formed XML whatever the jobs are called."""
    story.submit(4.0, "<&>")
    story.run(4.0, 9.0, lease("9", "<&>", "v100", "b-9:0"), 1.0, "finished")
    written = draw_run(story.metrics, str(tmp_path), "las")
    pictures = ("jct", "timeline", "shares", "utilisation")
    assert written == [str(tmp_path / f"{name}.{form}") for name in pictures for form in ("png", "svg")]
    for path in map(Path, written):
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314 - our own file
        else:
            assert imread(path).std() > 0.01
