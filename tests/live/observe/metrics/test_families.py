"""Families of metrics and their text: both formats, escapes, and the bound on label values."""

from __future__ import annotations

import pytest

from scheduler.live.observe.metrics import families as module
from scheduler.live.observe.metrics.families import OTHER, Folded, Registry, number


def filled() -> Registry:
    """Return a registry with a family of each kind."""
    registry = Registry()
    registry.counter("jobs_total", "Jobs.", "user").add("ann", amount=2)
    registry.gauge("gpus", "GPUs.").set(3)
    waits = registry.histogram("wait_seconds", "Waits.", bounds=(0.5, 2.0))
    for value in (0.25, 0.5, 1.0, 9.0):
        waits.observe(value=value)
    registry.gauge("unknown", "Has no value.")
    return registry


def test_the_text_is_what_prometheus_reads() -> None:
    """Each family has its help, its type and its series; buckets count all values up to their bound."""
    assert filled().text() == (
        "# HELP jobs_total Jobs.\n"
        "# TYPE jobs_total counter\n"
        'jobs_total{user="ann"} 2.0\n'
        "# HELP gpus GPUs.\n"
        "# TYPE gpus gauge\n"
        "gpus 3.0\n"
        "# HELP wait_seconds Waits.\n"
        "# TYPE wait_seconds histogram\n"
        'wait_seconds_bucket{le="0.5"} 2\n'
        'wait_seconds_bucket{le="2.0"} 3\n'
        'wait_seconds_bucket{le="+Inf"} 4\n'
        "wait_seconds_sum 10.75\n"
        "wait_seconds_count 4\n"
    )


def test_openmetrics_names_counters_without_their_suffix_and_marks_the_end() -> None:
    """The two formats have the same series."""
    plain, openmetrics = filled().text(), filled().text(openmetrics=True)
    assert openmetrics == plain.replace("HELP jobs_total", "HELP jobs").replace(
        "TYPE jobs_total", "TYPE jobs"
    ) + ("# EOF\n")


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ('say "hi"', r"say \"hi\""),
        ("back\\slash", r"back\\slash"),
        ("two\nlines", r"two\nlines"),
        ("\u202eevil", "\u202eevil"),
        ("\ud800", "?"),
    ],
)
def test_no_label_value_can_break_a_line(value: str, quoted: str) -> None:
    """Quotes, backslashes and line ends are escaped, and text without UTF-8 is replaced."""
    registry = Registry()
    registry.gauge("g", "G.", "tenant").set_all({(value,): 1.0})
    assert registry.text().encode().split(b"\n")[2:] == [f'g{{tenant="{quoted}"}} 1.0'.encode(), b""]


def test_values_beyond_the_limit_share_one_label() -> None:
    """The first values keep their names for good; later ones are `other`, and are counted once each."""
    folded = Folded(2)
    assert [folded.name(value) for value in ("a", "b", "c", "a", "d", "c", OTHER)] == [
        *("a", "b", OTHER, "a", OTHER, OTHER, OTHER)
    ]
    assert folded.folded == 2


def test_preferred_values_keep_their_names() -> None:
    """They keep them also if others came first; places are kept for those that have not come yet."""
    folded = Folded(2)
    folded.prefer(["a", "b", "beyond the limit"])
    assert [folded.name(value) for value in ("x", "a", "beyond the limit", "b")] == [OTHER, "a", OTHER, "b"]
    folded = Folded(2)
    assert [folded.name(value) for value in ("x", "y", "a")] == ["x", "y", OTHER]
    folded.prefer(["a", "b"])
    assert [folded.name(value) for value in ("a", "z", "b")] == ["a", OTHER, "b"]
    assert folded.folded == 1
    # Never more than twice as many.
    folded.prefer(["c"])
    assert folded.name("c") == OTHER


def test_a_family_of_any_size_renders_labels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape makes no text again that the last one made; series that are gone are forgotten."""
    registry, rendered_labels, label_text = Registry(), list[object](), module._label_text
    monkeypatch.setattr(
        module, "_label_text", lambda *names: rendered_labels.append(names) or label_text(*names)
    )
    gauge = registry.gauge("g", "G.", "n")
    histogram = registry.histogram("h_seconds", "H.", "n", bounds=(1.0,))
    names = [str(value) for value in range(20_000)]
    for name in names:
        histogram.observe(name, value=1.0)
    gauge.set_all({(name,): 1.0 for name in names})
    first = registry.text()
    rendered_labels.clear()
    assert registry.text() == first
    assert rendered_labels == []
    gauge.set_all({("a",): 1.0})
    assert 'g{n="a"} 1.0' in registry.text()
    assert len(gauge._beginnings) == 1


def test_a_counter_never_falls() -> None:
    """Amounts that are not positive numbers are ignored."""
    counter = Registry().counter("c_total", "C.")
    for amount in (1.0, -5.0, 0.0, float("nan")):
        counter.add(amount=amount)
    assert counter.values == {(): 1.0}


def test_series_can_begin_at_zero() -> None:
    """Expected series exist before their first event."""
    counter = Registry().counter("c_total", "C.", "how")
    counter.add("a")
    counter.expect(("a", "b"))
    assert list(counter.series()) == ['c_total{how="a"} 1.0', 'c_total{how="b"} 0.0']


def test_numbers_without_a_finite_value() -> None:
    """Infinities and NaN have names of their own."""
    values = (float("inf"), float("-inf"), float("nan"), 1e300, 0.1)
    assert [number(value) for value in values] == ["+Inf", "-Inf", "NaN", "1e+300", "0.1"]
