"""Families of metrics, and their text in the two formats that Prometheus reads. Pure: no clock, no file, no network.

    registry = Registry()
    jobs = registry.gauge("gavel_jobs", "Jobs by state.", "state")
    jobs.set_all({("running",): 3.0})
    registry.text()

A family has a fixed list of label names; a series is a family with a value for each of them. The text of a series'
labels is made once, because a scrape renders thousands of series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

Labels = tuple[str, ...]

# The label value that stands for all values beyond the limit of `Folded`.
OTHER = "other"
# How many folded values are told apart when they are counted.
FOLDED_COUNTED_MAX = 10_000
# How many texts of series that are gone a family keeps at least.
KEPT_TEXTS = 100
# Content types by format.
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Folded:
    """A bounded set of label values: the first `limit` different values keep their names, all later ones are OTHER.

    Preferred values keep theirs even if others came first, so there may be twice as many names, but never more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: set[str] = {OTHER}
        self._folded: set[str] = set()
        self._preferred: frozenset[str] = frozenset()

    def prefer(self, values: Iterable[str]) -> None:
        """Keep places for these values; only the first `limit` of them count."""
        self._preferred = frozenset(islice(values, self._limit))

    def name(self, value: str) -> str:
        """Return the value to use as a label."""
        if value in self._kept:
            return value
        if self._has_place(value):
            self._kept.add(value)
            self._folded.discard(value)
            return value
        if len(self._folded) < FOLDED_COUNTED_MAX:
            self._folded.add(value)
        return OTHER

    def _has_place(self, value: str) -> bool:
        names = len(self._kept) - 1
        if value in self._preferred:
            return names < 2 * self._limit
        return names < self._limit and names + len(self._preferred - self._kept) < self._limit

    @property
    def folded(self) -> int:
        """How many different values were folded into OTHER."""
        return len(self._folded)


class Family:
    """A metric with its help text and label names, and the value of each series."""

    kind = ""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help_text, tuple(labels)
        self.values: Mapping[Labels, float] = {}
        # The beginning of each line of a series, as far as it was ever rendered.
        self._beginnings: dict[Labels, str] = {}

    def series(self) -> Iterator[str]:
        """Yield the lines of all series."""
        known = self._beginnings
        # Most families have the same series for ever, but a gauge may get others each time.
        if len(known) > 2 * len(self.values) + KEPT_TEXTS:
            known.clear()
        for labels, value in self.values.items():
            beginning = known.get(labels)
            if beginning is None:
                beginning = known[labels] = f"{self.name}{_label_text(self.labels, labels)} "
            yield beginning + number(value)


class Counter(Family):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_text, labels)
        # Without labels there is one series, which exists from the start.
        self.values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Add to one series. Amounts that are not positive are ignored."""
        if amount > 0:
            self.values[labels] = self.values.get(labels, 0.0) + amount

    def expect(self, values: Iterable[str]) -> None:
        """Let series of the only label begin at 0, so that Prometheus sees their first event as an increase."""
        for value in values:
            self.values.setdefault((value,), 0.0)


class Gauge(Family):
    """A number that is set."""

    kind = "gauge"

    def set(self, value: float) -> None:
        """Set the only series of a family without labels."""
        self.values = {(): value}

    def set_all(self, values: Mapping[Labels, float]) -> None:
        """Replace all series."""
        self.values = values


class Histogram(Family):
    """How often values were at most as large as each of some bounds, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, help_text, labels)
        self.bounds = tuple(bounds)
        self._les = (*map(number, self.bounds), "+Inf")
        # By labels: how many values lie in each interval between two bounds, and their sum.
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        # By labels: the beginnings of the lines of the buckets, of the sum and of the count.
        self._lines: dict[Labels, list[str]] = {}
        if not labels:
            self._begin(())

    def _begin(self, labels: Labels) -> list[int]:
        self._sums[labels] = 0.0
        counts = self._counts[labels] = [0] * (len(self.bounds) + 1)
        return counts

    def observe(self, *labels: str, value: float) -> None:
        """Count a value. Negative ones, which a clock may cause, count as 0."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._begin(labels)
        value = max(value, 0.0)
        counts[bisect_left(self.bounds, value)] += 1
        self._sums[labels] += value

    def count(self, *labels: str) -> int:
        """Return how many values a series has counted."""
        return sum(self._counts.get(labels, ()))

    def series(self) -> Iterator[str]:
        """Yield the lines of all series."""
        for labels, counts in self._counts.items():
            lines = self._lines.get(labels)
            if lines is None:
                lines = self._lines[labels] = [*self._line_beginnings(labels)]
            total = 0
            for beginning, count in zip(lines, counts, strict=False):
                total += count
                yield f"{beginning}{total}"
            yield lines[-2] + number(self._sums[labels])
            yield f"{lines[-1]}{total}"

    def _line_beginnings(self, labels: Labels) -> Iterator[str]:
        names, own = (*self.labels, "le"), _label_text(self.labels, labels)
        for le in self._les:
            yield f"{self.name}_bucket{_label_text(names, (*labels, le))} "
        yield f"{self.name}_sum{own} "
        yield f"{self.name}_count{own} "


class Registry:
    """All families, in the order in which they were made."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def counter(self, name: str, help_text: str, *labels: str) -> Counter:
        """Make a counter, whose name ends with _total."""
        counter = Counter(name, help_text, labels)
        self.families[name] = counter
        return counter

    def gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        """Make a gauge."""
        gauge = Gauge(name, help_text, labels)
        self.families[name] = gauge
        return gauge

    def histogram(self, name: str, help_text: str, *labels: str, bounds: Sequence[float]) -> Histogram:
        """Make a histogram."""
        histogram = Histogram(name, help_text, labels, bounds)
        self.families[name] = histogram
        return histogram

    def text(self, *, openmetrics: bool = False) -> str:
        """Return all families as text, by default in the format 0.0.4."""
        lines: list[str] = []
        for family in self.families.values():
            series = list(family.series())
            if not series:
                continue
            # OpenMetrics names a counter without the suffix of its series.
            name = family.name.removesuffix("_total") if openmetrics else family.name
            lines += (f"# HELP {name} {_escaped(family.help)}", f"# TYPE {name} {family.kind}", *series)
        lines.append("# EOF\n" if openmetrics else "")
        return "\n".join(lines)


def number(value: float) -> str:
    """Return a number as both formats write it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _label_text(names: Labels, values: Labels) -> str:
    """Return `{name="value",…}`; an empty text without labels."""
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    # A lone surrogate has no UTF-8, and one such name must not spoil every scrape.
    plain = text.encode(errors="replace").decode()
    return _escaped(plain).replace('"', r"\"")
