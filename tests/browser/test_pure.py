"""The pure parts of the pages' JavaScript, in Chromium; no scheduler is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import needs_chromium
from tests.browser.conftest import Ask

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = needs_chromium


@pytest.fixture
def page(blank: Page) -> Page:
    """A page without a scheduler."""
    return blank


def columns(**columns: list[Any]) -> dict[str, Any]:
    """Rows as the gateway sends them."""
    return {"id": [], **columns}


def reduced(page: Page, *events: tuple[str, Any]) -> dict[str, Any]:
    """The state after these events, as plain values."""
    script = """(events) => import("/assets/live.js").then(({ EMPTY, reduce }) => {
        const state = events.reduce((state, [kind, data]) => reduce(state, kind, data), EMPTY);
        return { ...state, jobs: [...state.jobs.values()] };
    })"""
    state: dict[str, Any] = page.evaluate(script, [list(event) for event in events])
    return state


def test_changes_of_a_round_are_those_from_its_planning_to_the_next(ask: Ask) -> None:
    """A job that left and came has moved; one that came in mid-round filled idle GPUs; the rest stayed."""

    def at(second: int) -> str:
        return f"2026-11-23T10:00:{second:02}Z"

    def lease(job: str, round_: int, gpu: str, granted: int, ended: int | None = None) -> dict[str, Any]:
        end = {} if ended is None else {"ended": at(ended), "outcome": "yielded", "why": "its turn is over"}
        return {"job": job, "round": str(round_), "gpus": [gpu], "granted": at(granted), **end}

    second = {"number": "2", "planned": at(18), "starts": at(20), "policy": "fifo"}
    third = {"number": "3", "planned": at(38), "starts": at(40), "policy": "fifo"}
    leases = [
        lease("1", 1, "n:0", 0, 20),
        lease("1", 2, "n:1", 18),
        lease("2", 1, "n:1", 0, 19),
        lease("3", 2, "n:0", 18),
        lease("10", 2, "n:2", 30),
        lease("4", 1, "n:3", 0),
        lease("5", 1, "n:4", 0, 39),
    ]
    changes = ask("rounds", "changesOf", second, third, leases)
    assert [tuple(change[name] for name in ("job", "change", "from", "to", "why")) for change in changes] == [
        ("3", "began", [], ["n:0"], "its turn, by fifo"),
        ("10", "began", [], ["n:2"], "the GPUs were idle"),
        ("2", "ended", ["n:1"], [], "yielded: its turn is over"),
        ("1", "moved", ["n:0"], ["n:1"], "yielded: its turn is over"),
    ]


def test_events_make_one_state(page: Page) -> None:
    """Changed rows replace the old ones, ended jobs leave, and unknown events change nothing."""
    state = reduced(
        page,
        (
            "queue",
            {
                "event": "a-1",
                "stale_since": None,
                "columns": columns(id=["1", "2"], state=["queued", "running"]),
            },
        ),
        (
            "jobs",
            {
                "rows": columns(id=["1", "3"], state=["running", "queued"]),
                "gone": columns(id=["2"], state=["failed"]),
            },
        ),
        ("overview", {"round": {"number": 7}, "stale_since": None}),
        ("of another version", {"anything": 1}),
    )
    assert state["jobs"] == [{"id": "1", "state": "running"}, {"id": "3", "state": "queued"}]
    assert (state["event"], state["round"], state["loaded"], state["staleSince"]) == ("a-1", 7, True, 0)


def test_a_second_cause_does_not_make_stale_figures_younger(page: Page) -> None:
    """The time since when they are stale stays until something answers again."""
    stale = [
        ("stale", {"since": 100, "detail": "the scheduler"}),
        ("stale", {"since": 200, "detail": "the gateway"}),
    ]
    assert reduced(page, *stale)["staleSince"] == 100
    assert reduced(page, *stale, ("live", {}))["staleSince"] == 0


@pytest.mark.parametrize(
    ("due", "received", "at"),
    [(10, 10, 0), (10, 20, 0.5), (10, 5, -0.5), (10, 0, -1), (10, 1000, 1), (0, 5, 1), (0, 0, 0)],
)
def test_the_colour_of_a_ratio_is_symmetric_around_1(
    ask: Ask, due: float, received: float, at: float
) -> None:
    """Twice as much is as far from the middle as half as much, and four times is the end."""
    assert ask("colors", "standing", due, received) == pytest.approx(at)


def test_more_due_is_more_opaque(ask: Ask) -> None:
    """Little is faint but visible; the most is full; nothing is nothing."""
    faint, half, full = (ask("colors", "opacity", due, 0, 100) for due in (0.01, 50, 100))
    assert 0.25 < faint < half < full == 1
    assert ask("colors", "opacity", 0, 0, 100) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_data_and_of_text_can_be_told_apart(page: Page, theme: str) -> None:
    """In each theme: text has the contrast of WCAG AA, and the colours of types differ for the colour-blind, too."""
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
    palette = page.evaluate("() => import('/assets/colors.js').then(({ palette }) => palette())")
    contrast = "(pair) => import('/assets/colors.js').then(({ contrast }) => contrast(...pair))"
    for name in ("ink", "muted", "accent", "behind"):
        assert page.evaluate(contrast, [palette["ground"], palette[name]]) >= 4.5, name
    for seeing in SEEING.values():
        colors = [perceived(color, seeing) for color in palette["types"]]
        distances = [
            sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
            for n, a in enumerate(colors)
            for b in colors[:n]
        ]
        assert min(distances) > 0.1
        behind, even, ahead = (perceived(palette[name], seeing) for name in ("behind", "even", "ahead"))
        for a, b in ((behind, even), (even, ahead), (behind, ahead)):
            assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.1


Matrix = tuple[tuple[float, float, float], ...]
# How colours are seen (Machado, Oliveira and Fernandes 2009, full severity), for linear RGB.
SEEING: dict[str, Matrix] = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
# Linear RGB to the cone responses of Oklab, and these to Oklab.
CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
OKLAB: Matrix = (
    (0.2104542553, 0.793617785, -0.0040720468),
    (1.9779984951, -2.428592205, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.808675766),
)


def times(matrix: Matrix, vector: list[float]) -> list[float]:
    """Multiply."""
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def perceived(color: list[float], seeing: Matrix) -> list[float]:
    """Return this colour in Oklab, where distances are as people see them."""
    linear = [(c / 255 / 12.92) if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    filtered = [min(1.0, max(0.0, value)) for value in times(seeing, linear)]
    return times(OKLAB, [value ** (1 / 3) for value in times(CONES, filtered)])


@pytest.mark.parametrize(
    ("text", "displayed"),
    [
        ("a\x00b\x1bc", "a␀b␛c"),
        ("\u202efdp.exe", "�fdp.exe"),
        ("line\nline", "line\nline"),
        ("<b>", "<b>"),
        (None, ""),
        ("x" * 200, "x" * 160 + "… (200 characters)"),
    ],
)
def test_names_of_users_show_what_cannot_be_seen(ask: Ask, text: str | None, displayed: str) -> None:
    """Control characters and marks of direction are visible, and what is long is cut."""
    assert ask("values", "plain", text) == displayed


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40s"), (720, "12m"), (11_100, "3h05m"), (187_200, "2d4h"), (-5, "0s")]
)
def test_durations_read_as_those_of_the_command_line(ask: Ask, seconds: float, text: str) -> None:
    """The same words as `gavel queue`."""
    from gavel.client.views.units import span

    assert ask("values", "span", seconds) == text == span(seconds)


def test_colours_of_terminals_become_classes_and_other_sequences_vanish(ask: Ask) -> None:
    """A style stays in force until it is reset, and a link or a title of a window is left out."""
    pieces = ask("values", "ansi", "a\x1b[1;31mb\x1b[39mc\x1b[0md\x1b]0;title\x07e\x1b[2K")["pieces"]
    assert [(piece["text"], piece["style"]) for piece in pieces] == [
        ("a", ""),
        ("b", "ansi-1 bold"),
        ("c", "bold"),
        ("d", ""),
        ("e", ""),
    ]


def test_lines_of_ranks_are_put_together_from_pieces(page: Page) -> None:
    """Pieces end anywhere; ranks do not mix; a carriage return begins the line again; the oldest lines go first."""
    script = """() => import("/assets/log.js").then(({ Lines }) => {
        const lines = new Lines();
        lines.add("0", "on"); lines.add("1", "other\\n"); lines.add("0", "e\\n\\n10 %\\r20 %\\n");
        const all = lines.lines.map((line) => [line.rank, line.text]);
        lines.trim(80);
        return [all, lines.dropped, lines.lines.length];
    })"""
    lines, dropped, left = page.evaluate(script)
    assert lines == [["0", "one"], ["1", "other"], ["0", ""], ["0", "20 %"]]
    assert (dropped, left) == (2, 2)


def test_a_job_file_says_what_the_spec_says(ask: Ask) -> None:
    """Fields get their names of job files; standard values are left out; what YAML would read otherwise is quoted."""
    from protos.files.yaml import read_yaml

    spec = {
        "name": "yes",
        "gpus": 2,
        "gpus_min": 2,
        "gpus_max": 8,
        "weight": 1,
        "memory_gb": 64,
        "deadline_s": 3600,
        "worker_types": ["a100"],
        "after": [{"job": "17", "when": "ended"}],
        "launch": {"script": "cd /x\npython train.py\n", "env": {"SEED": "7"}, "ranks": "per_node"},
    }
    text = ask("jobfile", "jobFile", spec)
    assert text.splitlines() == [
        "script: |",
        "  cd /x",
        "  python train.py",
        'env: {SEED: "7"}',
        "ranks: per_node",
        'name: "yes"',
        "gpus: 2-8",
        'memory: "64GB"',
        "worker_types: [a100]",
        'deadline: "3600s"',
        'after: ["17:ended"]',
    ]
    assert len(read_yaml(text)) == 1


def row(job: str, tenant: str, due: float, received: float) -> dict[str, Any]:
    """A row of the matrix with one cell."""
    cell = {"worker_type": "v100", "due_s": due, "received_s": received, "gpus": 0}
    return {"job": job, "name": "", "tenant": tenant, "jobs": 1, "cells": [cell]}


def test_the_matrix_has_the_rows_furthest_behind_first_below_their_tenants(page: Page) -> None:
    """Tenants are in the order of their gaps, too; a closed one hides its jobs; a single one has no row."""
    script = """([tenants, jobs, closed]) => import("/assets/matrix.js").then(({ linesOf }) =>
        linesOf(tenants, jobs, (tenant) => !closed.includes(tenant)).map((line) => line.job || line.tenant))"""
    jobs = [row("1", "a", 10, 10), row("2", "a", 10, 5), row("3", "b", 100, 0)]
    tenants = [row("", "a", 20, 15), row("", "b", 100, 0)]
    assert page.evaluate(script, [tenants, jobs, []]) == ["b", "3", "a", "2", "1"]
    assert page.evaluate(script, [tenants, jobs, ["b"]]) == ["b", "a", "2", "1"]
    assert page.evaluate(script, [tenants[:1], jobs[:2], []]) == ["2", "1"]


def test_the_tenant_called_default_has_the_jobs_that_name_none(ask: Ask) -> None:
    """Both are one row, with their sums."""
    accounts = [
        {"tenant": tenant, "worker_type": "v100", "starts": 60, "due_s": due, "received_s": 10.0}
        for tenant, due in (("", 20.0), ("default", 5.0), ("org", 12.0))
    ]
    rows = ask("fairness", "byTenant", accounts)
    assert [(row["tenant"], row["due"], row["received"]) for row in rows] == [
        ("default", 25.0, 20.0),
        ("org", 12.0, 10.0),
    ]


def test_limits_read_as_they_are_written(ask: Ask) -> None:
    """As text for a field and back, and in words, always in the same order."""
    assert ask("tenants", "limitsOf", " h100=8, *=64\n") == {"h100": 8, "*": 64}
    assert ask("tenants", "budgetsOf", "week=1e2 month=.5") == {"week": 100, "month": 0.5}
    assert ask("tenants", "limitsOf", "") == {}
    quota = {
        "cost": {"month": 2000, "day": 0.5},
        "gpu_hours": {"week": 1},
        "gpus": {"*": 64, "v100": 1, "h100": 8},
        "jobs_running": 1,
        "beyond": "backfill",
    }
    assert ask("tenants", "quotaText", quota) == ", ".join(
        (
            *("8 GPUs of h100", "1 GPU of v100", "64 GPUs", "1 running job", "1 GPU-hour a week"),
            *("0.5 cost a day", "2,000 cost a month", "beyond these only GPUs that are due to no job"),
        )
    )


@pytest.mark.parametrize(
    ("function", "text"),
    [
        *[("limitsOf", text) for text in ("h100", "h100=", "=8", "h100=1.5", "h100=-1", "h100=8 EUR")],
        *[("budgetsOf", text) for text in ("500", "year=1", "week=-1", "week=nan", "week=1e", "week=.")],
    ],
)
def test_what_is_no_limit_is_refused_by_its_name(page: Page, function: str, text: str) -> None:
    """The error begins with the part of the text that is wrong."""
    script = """([name, text]) => import("/assets/tenants.js").then((all) => {
        try { return all[name](text) && ""; } catch (error) { return error.message; }
    })"""
    assert page.evaluate(script, [function, text]).startswith(
        f"{text.rsplit(maxsplit=1)[-1]}: write it as in "
    )


def test_csv_is_quoted_and_runs_no_formula(ask: Ask) -> None:
    """A name with a comma is one cell, and a name that begins like a formula is text in a spreadsheet."""
    usage = {"name": '=SUM("x"),1', "gpu_s": {"v100": 3}, "cost": 1.5, "jobs": 2}
    assert ask("use", "usageCsv", [usage], "user").splitlines() == [
        "user,gpu_s_v100,cost,jobs",
        '"\'=SUM(""x""),1",3,1.5,2',
    ]


def test_a_filter_finds_words_and_fields(ask: Ask) -> None:
    """All words must match, wherever they stand; `user:ada` matches the whole field."""
    job = {
        "id": "7",
        "name": "ResNet",
        "user": "ada",
        "tenant": "org/team",
        "job_type": "",
        "state": "queued",
    }

    def matches(text: str, *states: str) -> bool:
        answer: bool = ask("queue", "matches", job, {"text": text, "states": list(states)})
        return answer

    assert matches("resnet ada")
    assert matches("user:ada", "queued")
    assert not matches("user:ad")
    assert not matches("resnet grace")
    assert not matches("", "running")
