"""Results as HTML for notebooks.

Every text goes through `Html.of`, which escapes it, so a job may be called `<script>`. Styles are inline, because
notebooks remove style sheets from outputs that they do not trust. Text has the notebook's own colour and lines are
half-transparent, so that both light and dark themes show them; only the states have colours of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import singledispatch
from html import escape

from gavel.client.queue import Queue
from gavel.client.results import Allocation, Explanation, Job, JobState
from gavel.client.views import text
from gavel.client.views.job_details import history, request
from gavel.client.views.job_text import why_words
from gavel.client.views.queue_rows import STATE
from protos.files.errors import printable

# The background of a state's label. White text on each has a contrast of at least 4.5 to 1.
COLOURS = {
    **dict.fromkeys(("running", "up"), "#1a7f37"),
    **dict.fromkeys(("completed", "cancelled"), "#57606a"),
    **dict.fromkeys(("preempted", "draining", "silent"), "#9a6700"),
    **dict.fromkeys(("failed", "lost", "faulty"), "#cf222e"),
    **dict.fromkeys(("queued", "unknown"), "#0969da"),
    "held": "#8250df",
}
LINE = "1px solid rgba(127,127,127,.45)"
CELL = (
    f"text-align:left;padding:2px 10px 2px 0;border:none;border-bottom:{LINE};color:inherit;background:none"
)
# Without a document type, browsers give tables colours and sizes of their own.
TABLE = "border-collapse:collapse;border:none;color:inherit;font-size:inherit"
# Names such as `$x$` are not formulas.
NO_FORMULAS = "tex2jax_ignore mathjax_ignore"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()

    @classmethod
    def of(cls, content: object) -> Html:
        """Return HTML unchanged, and any other text escaped."""
        if isinstance(content, Html):
            return content
        return cls("\n".join(escape(printable(line)) for line in str(content).split("\n")))


def tag(name: str, *contents: object, style: str = "", cls: str = "") -> Html:
    """Return an element with these contents."""
    attributes = "".join(
        f' {key}="{escape(value)}"' for key, value in (("class", cls), ("style", style)) if value
    )
    return Html(f"<{name}{attributes}>{''.join(map(Html.of, contents))}</{name}>")


@singledispatch
def html(result: object) -> Html:
    """Return a result as HTML."""
    return page(tag("pre", repr(result)))


@html.register
def _(queue: Queue) -> Html:
    if not queue:
        return page(tag("div", "no jobs"))
    heads, rows = text.queue_table(queue)
    cells = [
        [*row[:STATE], _label(job.state), *row[STATE + 1 :]]
        for job, row in zip(queue[: len(rows)], rows, strict=True)
    ]
    title = f"{text.queue_title(queue)}; at {queue.at.astimezone():%H:%M:%S}"
    return page(tag("div", title), table(heads, cells), _rest(len(rows), queue.total, "job"))


@html.register
def _(job: Job) -> Html:
    now = datetime.now(UTC)
    name = f" '{job.spec.name}' " if job.spec.name else " "
    why = f" ({why_words(job)})" if job.why else ""
    parts = [
        tag("div", tag("b", f"job {job.id}{name}"), _label(job.state), why),
        _pairs(history(job, now)),
        tag("details", tag("summary", "as submitted"), _pairs(request(job))),
    ]
    if job.last_lines:
        parts += [tag("div", "last lines of the attempt that failed:"), _preformatted(job.last_lines)]
    return page(*parts)


@html.register
def _(explanation: Explanation) -> Html:
    title = tag("b", f"job {explanation.job} "), _label(explanation.state), f" {explanation.reason}"
    # The first line has the state, too.
    return page(tag("div", *title), _preformatted(text.text(explanation).partition("\n")[2]))


@html.register
def _(allocation: Allocation) -> Html:
    title, *notes = text.allocation_notes(allocation)
    rows = [text.share_cells(share) for share in allocation.shares[: text.ROWS_MAX]]
    return page(
        tag("b", title),
        *(tag("div", note) for note in notes),
        table(text.SHARE_HEADS, rows) if rows else "",
        _rest(len(rows), len(allocation.shares), "share"),
    )


def page(*parts: object) -> Html:
    """Return the parts of a result as one element."""
    return tag("div", *parts, cls=NO_FORMULAS, style="color:inherit;line-height:1.5;overflow-x:auto")


def _label(state: JobState) -> Html:
    colour = COLOURS.get(state.value, COLOURS["unknown"])
    style = f"background:{colour};color:#fff;border-radius:9px;padding:0 8px;white-space:nowrap"
    return tag("span", state.value, style=style)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table with these heads."""
    head = tag("tr", *(tag("th", head, style=f"{CELL};font-weight:bold") for head in heads))
    body = (tag("tr", *(tag("td", cell, style=CELL) for cell in row)) for row in rows)
    return tag("table", tag("thead", head), tag("tbody", *body), style=TABLE)


def _pairs(pairs: Iterator[tuple[str, str]]) -> Html:
    rows = (
        tag("tr", tag("td", key, style=f"{CELL};opacity:.75"), tag("td", value, style=CELL))
        for key, value in pairs
    )
    return tag("table", tag("tbody", *rows), style=TABLE)


def _preformatted(lines: str) -> Html:
    return tag("pre", lines, style="white-space:pre-wrap;color:inherit;background:none;padding:0")


def _rest(listed: int, total: int | None, thing: str) -> Html:
    return tag("div", *text.rest(listed, total, thing))
