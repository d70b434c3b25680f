"""Format numbers and names, and a whole explanation as a few aligned lines.

Times are relative to now, because the reader's clock may differ from the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.explain.answer import Explanation, Way
from scheduler.model.launch import TerminalUse

_BASIS = {
    "lease_granted": "it has its lease already",
    "next_round": "when the next round begins",
    "next_allocation": "its share is computed first",
    "earliest_start": "its earliest start",
    "dependency_ends": "when the jobs it waits for have done their steps",
    "shares": "from its share and higher claims",
    "jobs_end": "when running jobs have done their steps",
    "minimum_run_ends": "when the minimum run time of others is over",
    "budget_renewed": "when the budget is renewed",
}

# How many lines of a log are shown.
LINES_SHOWN = 5
# Longer times are not shown exactly.
AGES_S = 1000 * 365 * 86_400.0


def span(seconds: float) -> str:
    """Format a length of time: "40 s", "6 min", "1 h 20 min", "2 d 3 h"."""
    if seconds >= AGES_S:
        return "over 1000 years"
    if seconds < 59.5:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def when(at_s: float, now_s: float) -> str:
    """Format a future time: "now", "in about 6 min"."""
    return "now" if at_s - now_s < 0.5 else f"in about {span(at_s - now_s)}"


def percent(part: float) -> str:
    """Format a share: "42 %", "0.3 %"."""
    return f"{100 * part:.0f} %" if part >= 0.01 or part <= 0 else f"{100 * part:.1g} %"


def listed(words: Sequence[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def jobs(names: Sequence[str], count: int = 0) -> str:
    """Name jobs: "job 17", "jobs 17, 18 and 34 others". `count`: the number of all jobs, if not all are in `names`."""
    return f"{'jobs' if max(count, len(names)) > 1 else 'job'} {some(names, count)}"


def some(names: Sequence[str], count: int = 0) -> str:
    """Join the first of some names: "17", "17, 18 and 34 others". `count`: as in `jobs`."""
    count = max(count, len(names))
    words = list(names[:2] if count > 3 else names[:count])
    rest = count - len(words)
    if rest:
        words.append(f"{rest} other{'s' if rest > 1 else ''}")
    return listed(words)


def render(explanation: Explanation) -> str:
    """Format an explanation as text."""
    reason = "" if explanation.reason.value == explanation.state.value else f" ({explanation.reason})"
    lines = [f"job {explanation.job}: {explanation.state}{reason}", explanation.text]
    if explanation.terminal is not None:
        lines.append(_terminal(explanation.job, explanation.terminal, explanation.at_s))
    if explanation.last_lines:
        lines += ["", f"The last lines of the attempt that failed (all: `gavel logs {explanation.job}`):"]
        lines += [f"  {line}" for line in explanation.last_lines.splitlines()[-LINES_SHOWN:]]
    if explanation.evidence:
        lines += ["", *_table(explanation.evidence)]
        if explanation.ways > len(explanation.evidence):
            lines.append(f"  and {explanation.ways - len(explanation.evidence)} more ways to run it")
    if explanation.would_change:
        lines += ["", "What would change it:", *(f"  - {change.text}" for change in explanation.would_change)]
    if explanation.expected_start_s is not None:
        basis = _BASIS.get(explanation.start_basis, "")
        start = when(explanation.expected_start_s, explanation.at_s)
        lines += ["", f"Expected start: {start} ({explanation.start_sure}: {basis})"]
    if explanation.updates:
        lines += ["", "Changed after its submission:"]
        lines += [
            f"  - {span(explanation.at_s - update.at_s)} ago{f' by {update.by}' if update.by else ''}: {update.text}"
            for update in explanation.updates
        ]
    return "\n".join(lines)


def _terminal(job: str, use: TerminalUse, now_s: float) -> str:
    """Describe how the terminal of a job is used, and how to come back to it."""
    kept = "a time" if use.keep_s is None else span(use.keep_s)
    back = f"`gavel attach {job}` comes back to it"
    if use.attached:
        return f"A client is attached to its terminal. Without one it continues for {kept}, and {back}."
    end = f"after {kept}" if use.until_s is None else when(use.until_s, now_s)
    return f"No client is attached to its terminal: {back}. Without one it gets SIGHUP {end}."


_HEAD = ("type", "GPUs", "steps/s", "share", "due", "received", "price", "free", "held by")


def _table(ways: Sequence[Way]) -> list[str]:
    rows = [_HEAD, *map(_row, ways)]
    width = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width[i]) if i in (0, len(_HEAD) - 1) else cell.rjust(width[i])
            for i, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _row(way: Way) -> tuple[str, ...]:
    name = " ".join(filter(None, (way.worker_type, way.label, way.with_job and f"with job {way.with_job}")))
    held = jobs([holder.job for holder in way.held_by], way.holders) if way.holders else ""
    if way.reserved_for:
        held = f"{held}; reserved for job {way.reserved_for}".removeprefix("; ")
    return (
        name,
        str(way.gpus),
        f"{'~' if way.guessed else ''}{way.rate:.3g}",
        percent(way.share),
        span(way.entitled_s),
        span(way.received_s),
        "-" if way.price_per_gpu is None else f"{way.price_per_gpu:.3g}" if way.price_per_gpu > 1e-6 else "0",
        f"{way.gpus_free}/{way.gpus_total}",
        held,
    )
