"""The reference answers of the training library: `python -m benchmarks.reference training FILE`.

FILE is a JSON object whose `cases` each have an id, a part, inputs, what is expected, and a tolerance by field. Cases
that only quote a published figure are anchors, and listed as such, with the confidence in them. The name of a check
says if its figure is secondary or recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import checkfreq, reference_cache, reference_cpu, reference_estimator, reference_skew
from benchmarks.reference_checks import Check, NotChecked
from gavel.training.data.stalls import fetch_rate, fractions, what_if
from gavel.training.interval import choose, young_s

Values = dict[str, Any]

# The error of a number that is rounded to nine digits.
NINE_DIGITS = 5e-9


def gavel_interval(inputs: Values) -> Values:
    """Our interval from four times and the bound."""
    times = {name: value for name, value in inputs.items() if name != "until_durable_s"}
    return choose(**times, durable_s=inputs["until_durable_s"])._asdict()


def checkfreq_interval(inputs: Values) -> Values:
    """CheckFreq's interval, with which `benchmarks.reference` compares ours."""
    mode, overhead_s, interval = checkfreq.first_interval(checkfreq.Profile(**inputs))
    return {"mode": mode, "overhead_s": overhead_s, "interval": interval}


def checkfreq_tuning(inputs: Values) -> Values:
    """CheckFreq's later intervals."""
    interval, bound = inputs["interval"], inputs["bound_percent"]
    return {"intervals": list(checkfreq.later_intervals(interval, bound, inputs["overhead_percent_seen"]))}


def young_daly(inputs: Values) -> Values:
    """Young's optimum in seconds and minutes."""
    interval_s = young_s(inputs["checkpoint_s"], inputs["mtbf_s"])
    return {"interval_s": interval_s, "interval_min": interval_s / 60}


def young_availability(inputs: Values) -> Values:
    """Both closed forms: least time lost, and longest availability."""
    checkpoint_s, mtbf_s = inputs["checkpoint_s"], inputs["mtbf_s"]
    return {
        "lost_time_optimal_s": young_s(checkpoint_s, mtbf_s),
        "availability_optimal_s": young_s(checkpoint_s, mtbf_s, inputs["repair_s"]),
    }


def speed(inputs: Values) -> Values:
    """The speed of a loop from the rates of its parts, and what would be needed of a cache."""
    answer = what_if(**inputs)
    return {
        **answer._asdict(),
        "speed": answer.rate,
        "fetch_stall": answer.fractions.fetch,
        "prep_stall": answer.fractions.prep,
    }


def differential(inputs: Values) -> Values:
    """How a loop spends its time, from three rates."""
    busy, prep, fetch = fractions(**inputs)
    return {"busy": busy, "prep_stall": prep, "fetch_stall": fetch}


def in_bytes(inputs: Values) -> Values:
    """The rate of reading from the speed of memory and disk, and the mean size of a sample."""
    sample = inputs["dataset_gib"] * 2**30 / inputs["samples"]
    memory, disk = inputs["memory_gib_per_s"] * 2**30, inputs["disk_mib_per_s"] * 2**20
    return {"samples_per_s": fetch_rate(memory / sample, disk / sample, inputs["cache_percent"] / 100)}


# By the beginning of a case's id.
ANSWERS: dict[str, Callable[[Values], Values]] = {
    "gavel-interval-": gavel_interval,
    "checkfreq-interval-": checkfreq_interval,
    "checkfreq-tuning-": checkfreq_tuning,
    "young-daly-": young_daly,
    "young-availability-": young_availability,
    "what-if-": speed,
    "differential-": differential,
    "ds-analyzer-tool-": in_bytes,
    **reference_cache.ANSWERS,
}
# Parts whose cases have checks of their own.
PARTS: dict[str, Callable[[Values], Iterator[Check | NotChecked]]] = {
    "estimator": reference_estimator.check_case,
    "skew": reference_skew.check_case,
}
# Parts whose cases need each other.
WHOLE_PARTS: dict[str, Callable[[list[Values]], Iterator[Check | NotChecked]]] = {
    "cpu": reference_cpu.check_cases,
}
# Where a case names a value otherwise than our code.
NAMES = {"gavel-interval-": {"interval": "steps"}}


def topics(document: Values) -> dict[str, Any]:
    """Return the cases of a file by their part."""
    cases: dict[str, list[Values]] = {}
    for case in document["cases"]:
        cases.setdefault(case["part"], []).append(case)
    return cases


def check_part(cases: list[Values]) -> Iterator[Check | NotChecked]:
    """Check the cases of one part."""
    if cases and cases[0]["part"] in WHOLE_PARTS:
        yield from WHOLE_PARTS[cases[0]["part"]](cases)
        return
    for case in cases:
        prefix = next((prefix for prefix in ANSWERS if case["id"].startswith(prefix)), None)
        if case["part"] in PARTS:
            yield from PARTS[case["part"]](case)
        elif case["tolerance"] == "anchor":
            figures = ", ".join(f"{name} {value}" for name, value in case["expected"].items())
            yield NotChecked(
                case["id"],
                f"a published figure, to stand beside ours ({case.get('confidence', 'unknown')}): {figures}",
            )
        elif prefix is None:
            yield NotChecked(case["id"], "nothing in this release answers it")
        else:
            answers, names = ANSWERS[prefix](case["inputs"]), NAMES.get(prefix, {})
            for field, expected in case["expected"].items():
                yield from compare(
                    f"{case['id']} {field}{doubt(case)}",
                    expected,
                    answers[names.get(field, field)],
                    tolerance(case["tolerance"], field),
                )


def doubt(case: Values) -> str:
    """Return how little a case's figures are known by, in parentheses; empty if their source was read."""
    confidence = case.get("confidence", "")
    return f" ({confidence})" if confidence.startswith(("secondary", "recalled")) else ""


def tolerance(tolerances: Any, field: str) -> float:
    """Return the greatest absolute deviation of a field."""
    by_field: dict[str, float] = tolerances if isinstance(tolerances, dict) else {"*": tolerances}
    return by_field.get(field, by_field.get("*", 0.0))


def compare(name: str, expected: Any, answer: Any, allowed: float) -> Iterator[Check]:
    """Compare numbers within the tolerance, but no closer than to nine digits, and anything else exactly."""
    if isinstance(expected, list):
        yield Check(f"{name}: length", len(expected), len(answer), 0.0)
        for index, values in enumerate(zip(expected, answer, strict=False)):
            yield from compare(f"{name}[{index}]", *values, allowed)
    elif isinstance(expected, (int, float)) and not isinstance(expected, bool):
        yield Check(
            name, expected, answer, max(allowed / abs(expected), NINE_DIGITS) if expected else allowed
        )
    else:
        yield Check(f"{name} is {expected}", 1.0, float(expected == answer), 0.0)
