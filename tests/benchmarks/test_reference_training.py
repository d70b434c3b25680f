"""The training library's reference answers, checked case by case."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from benchmarks.reference_checks import Check, NotChecked
from benchmarks.reference_cpu import best_cells
from benchmarks.reference_training import check_part, topics
from tests.support.public_data import public_data


def case(case_id: str, inputs: dict[str, Any], expected: dict[str, Any], tolerance: Any = 0.0) -> dict:
    """Return a case in the form of the file."""
    return {
        "id": case_id,
        "part": "checkpoint",
        "inputs": inputs,
        "expected": expected,
        "tolerance": tolerance,
    }


CASES = [
    case(
        "gavel-interval-a",
        {
            "step_s": 0.5,
            "stall_s": 0.2,
            "until_durable_s": 3.1,
            "overhead": 0.05,
            "mtbf_s": None,
            "lose_at_most_s": 3.0,
        },
        {"interval": 8, "overhead": 0.05, "over_lose_at_most": True},
        {"interval": 0, "overhead": 1e-9},
    ),
    case(
        "checkfreq-interval-a",
        {
            "t_iter_s": 0.3,
            "t_cpu_snapshot_thread_s": 0.9,
            "t_cpu_snapshot_process_s": 1.1,
            "t_gpu_snapshot_s": 0.02,
            "t_full_s": 6.0,
            "fits_gpu": True,
        },
        {"mode": "gpu", "overhead_s": 0.02, "interval": 20},
    ),
    case(
        "checkfreq-tuning-a",
        {"interval": 7, "bound_percent": 5, "overhead_percent_seen": [2.3, 7.1, 5.0]},
        {"intervals": [7, 9, 9]},
    ),
    case("young-daly-a", {"mtbf_s": 20000.0, "checkpoint_s": 1.0}, {"interval_s": 200.0, "interval_min": 3.3}, 0.1),
    case(
        "young-availability-a",
        {"mtbf_s": 24.0, "checkpoint_s": 1.0, "repair_s": 15.5},
        {"lost_time_optimal_s": 6.92820323, "availability_optimal_s": 9.94427191},
        {"*": 1e-8},
    ),
    case(
        "what-if-a",
        {"cache_rate": 4000.0, "storage_rate": 100.0, "prep_rate": 400.0, "gpu_rate": 800.0, "cached": 0.5},
        {
            "fetch_rate": 8000 / 41,
            "speed": 8000 / 41,
            "bound_by": "fetch",
            "fetch_stall": 1 - 20 / 41,
            "prep_stall": 10 / 41,
            "cache_needed": 10 / 13,
        },
        {"*": 1e-9, "bound_by": 0},
    ),
    case(
        "differential-a",
        {"synthetic_rate": 100.0, "cached_rate": 50.0, "real_rate": 25.0},
        {"busy": 0.25, "prep_stall": 0.25, "fetch_stall": 0.5},
    ),
    case(
        "ds-analyzer-tool-a",
        {"dataset_gib": 1, "samples": 1024, "memory_gib_per_s": 2, "disk_mib_per_s": 512, "cache_percent": 50},
        {"samples_per_s": 819.2},
    ),
    case(
        "hit-law-a",
        {"items": 4000, "cached": 0.6},
        {"never_evict": 0.6, "strict_lru": 0.2335, "lru_same_order_every_epoch": 0.0},
        {"strict_lru": 0.02},
    ),
    case(
        "never-evict-exact-a",
        {"items": 40, "capacity_items": 15, "epochs": 3},
        {"hits_per_epoch": [0, 15, 15], "reads_per_epoch": [40, 25, 25]},
    ),
    case(
        "concurrent-jobs-a",
        {"jobs": 3, "cached": 0.2, "dataset_gb": 50},
        {
            "shared_never_evict_gb": 120.0,
            "coordinated_prep_gb": 40.0,
            "preps_per_sample_alone": 3,
            "preps_per_sample_coordinated": 1,
        },
        {"*": 1e-6},
    ),
    case(
        "partitioned-a",
        {"nodes": 3, "cached_per_node": 0.2},
        {"alone_storage": 0.8, "partitioned_local": 0.2, "partitioned_remote": 0.4, "partitioned_storage": 0.4},
        {"*": 0.01},
    ),
]  # fmt: skip


@pytest.mark.parametrize("reference", CASES, ids=lambda reference: reference["id"])
def test_every_kind_of_case_is_checked_field_by_field(reference: dict[str, Any]) -> None:
    """The answers come from the code that training uses, or from CheckFreq's rules."""
    checks = list(check_part([reference]))
    assert len(checks) >= len(reference["expected"])
    for check in checks:
        assert isinstance(check, Check)
        assert check.holds, check


def test_a_wrong_answer_falls_short() -> None:
    """A deviation beyond the tolerance is noticed in numbers, lists, words and conditions."""
    wrong = [
        case("gavel-interval-a", CASES[0]["inputs"], {"interval": 9, "over_lose_at_most": False}),
        case("checkfreq-interval-a", CASES[1]["inputs"], {"mode": "cpu"}),
        case("checkfreq-tuning-a", CASES[2]["inputs"], {"intervals": [7, 9]}),
    ]
    checks = [check for check in check_part(wrong) if isinstance(check, Check)]
    assert [check.holds for check in checks] == [False, False, False, False, True, True]


def test_cases_without_an_answer_are_named() -> None:
    """Published figures, and cases of parts that do not exist yet, are listed and not counted."""
    unknown = case("server-split-1", {}, {"total": 1.0})
    anchor = case("published-1", {}, {"speed": 2.0}, "anchor")
    rows = list(check_part(topics({"cases": [unknown, anchor]})["checkpoint"]))
    assert [type(row) for row in rows] == [NotChecked, NotChecked]


TABLES = case(
    "synergy-tables",
    {},
    {
        "cpus": [1, 3, 9],
        "memory_gb": [62.5, 250],
        "rate": {
            "few": [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
            "many": [[0.3, 0.3], [1.0, 1.0], [1.0, 2.5]],
        },
    },
)


MODELS = ["many", *["few"] * 7]


def split(expected_best: float, memory_gb: float = 687.5) -> dict[str, Any]:
    """A server with one job that is the faster the more CPUs and memory it has, beside seven that are not."""
    inputs = {"jobs": MODELS, "cpus": 24, "memory_gb": memory_gb}
    own = case("server-split-a", inputs, {"fair_total": 8.0, "best_total": expected_best})
    return {**own, "part": "cpu"}


def test_the_cpus_of_a_server_are_split() -> None:
    """The best split is the published one, the columns do at least its work, and no job falls below its fair share."""
    tables, published = ({**own, "part": "cpu"} for own in (TABLES, case("published-synergy", {}, {})))
    results = list(check_part([tables, split(9.5), published]))
    assert [type(result) for result in results] == [NotChecked, *[Check] * 6, NotChecked]
    assert all(result.holds for result in results if isinstance(result, Check))
    (alone,) = check_part([split(9.5)])
    assert isinstance(alone, NotChecked)


@pytest.mark.parametrize(("best", "memory_gb"), [(9.6, 687.5), (9.4, 687.5), (9.5, 687.4), (8.1, 500.0)])
def test_a_best_split_that_is_none_is_noticed(best: float, memory_gb: float) -> None:
    """An optimum that is too great or too small falls short, and so does one that takes more memory than there is."""
    results = check_part([{**TABLES, "part": "cpu"}, split(best, memory_gb)])
    fallen = [result.case for result in results if isinstance(result, Check) and not result.holds]
    assert "server-split-a best_total" in fallen


def test_the_best_cells_are_those_of_all_splits() -> None:
    """Trying every combination of cells gives the same total, for whatever CPUs and memory there are."""
    tables = TABLES["expected"]
    rates = {"a": [[0.5, 0.7], [1.0, 1.3], [1.4, 2.2]], "b": [[1.0, 1.0], [1.0, 1.0], [1.6, 1.9]]}
    sizes = list(itertools.product(tables["cpus"], tables["memory_gb"]))
    for cpus, memory_gb in [(9, 187.5), (13, 375.0), (15, 500.0), (27, 750.0)]:
        totals = []
        for cells in itertools.product(range(6), repeat=3):
            own = [[rate for row in rates[model] for rate in row] for model in "aab"]
            picked = [row[cell] for row, cell in zip(own, cells, strict=True)]
            used = [sum(parts) for parts in zip(*(sizes[cell] for cell in cells), strict=True)]
            if min(picked) >= 1.0 and used[0] <= cpus and used[1] <= memory_gb:
                totals.append(sum(picked))
        best = best_cells("aab", {**tables, "rate": rates}, cpus, memory_gb)
        assert best == pytest.approx(max(totals), abs=1e-12)


def test_the_published_optima_of_servers_are_met_exactly() -> None:
    """The totals of Synergy's tables are found to the last digit."""
    document = json.loads(public_data("reference/training.json").read_text(encoding="utf-8"))
    cases = [own for own in document["cases"] if own["part"] == "cpu"]
    optima = {
        result.case: (result.expected, round(result.answer, 9))
        for result in check_part(cases)
        if isinstance(result, Check) and result.case.endswith(" best_total")
    }
    assert len(optima) >= 3
    assert all(expected == answer for expected, answer in optima.values()), optima


@pytest.mark.parametrize(
    ("confidence", "says"), [("secondary", True), ("recalled, unverified", True), ("primary (code)", False)]
)
def test_figures_whose_source_was_not_read_are_marked(confidence: str, says: bool) -> None:
    """A check of such a figure has the confidence in its name; an anchor always has it, beside its figures."""
    checked = {**CASES[3], "confidence": confidence}
    names = [row.case for row in check_part([checked])]
    assert [name.endswith(f" ({confidence})") for name in names] == [says] * 2
    (anchor,) = check_part([{**case("published-1", {}, {"speed": 2.0}, "anchor"), "confidence": confidence}])
    assert isinstance(anchor, NotChecked)
    assert anchor.reason == f"a published figure, to stand beside ours ({confidence}): speed 2.0"
