"""The reference answers about estimates of pairs, for `python -m benchmarks.reference training FILE`.

The cases state mean errors that several methods made on the published pairs. Ours must make no greater ones than the
design of our method promised, and smaller ones than the matching of the published code.
As in the cases, all pairs count that were not probed; ours has no error at those that do not fit, which Gavel knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from benchmarks.pairs import DATA, METHODS, Errors, Published, errors, published_pairs
from benchmarks.reference_checks import Check, NotChecked

PREFIX = "pair-completion-"
# Our names of the groups that cases name, by the beginning of their names.
GROUPS = {
    "may be a reference": "may be a reference",
    "as in Gavel": "may be a reference",
    "never a reference": "never a reference",
    "job never among the references": "never a reference",
    "family unseen": "family unseen",
    "no reference of the job s model family": "family unseen",
}
# The method of a case that is ours, and the published one with which its other methods are compared.
OURS, MATCHING = "mix", "gavel_match"


def check_case(case: dict[str, Any]) -> Iterator[Check | NotChecked]:
    """Check one case of the part `estimator`."""
    if not case["id"].startswith(PREFIX):
        reason = "a published figure; `python -m benchmarks.pairs simulation` runs the same setting"
        yield NotChecked(case["id"], reason)
        return
    if not DATA.exists():
        yield NotChecked(case["id"], f"the published tables are missing: {DATA}")
        return
    seeds = tuple(case["inputs"]["seeds"])
    allowed = case["tolerance"] if isinstance(case["tolerance"], float) else 0.0
    for setting, expected in case["expected"].items():
        name, _, part = setting.partition("p=")
        group = next((value for prefix, value in GROUPS.items() if name.startswith(prefix)), None)
        if group is None or not part:
            yield NotChecked(f"{case['id']}: {setting}", "this release knows no such setting")
            continue
        figures = _errors(group, float(part), seeds)
        if "mae" in expected:
            for figure, answer in (("mae", figures.mae), ("wrong_to_pack", figures.wrong_side)):
                limit = expected[figure][OURS]
                yield Check(f"{group} p={part}: {figure}", limit, answer, allowed / limit, at_most=True)
        else:
            yield Check(f"{group} p={part}: mae", expected[MATCHING], figures.mae, 0.0, at_most=True)


@lru_cache(maxsize=32)
def _errors(group: str, probed: float, seeds: tuple[int, ...]) -> Errors:
    return errors(_published(), METHODS["ours"], probed, group, seeds, misfits=True)


@lru_cache(maxsize=1)
def _published() -> Published:
    return published_pairs()
