"""Runs as values, and sweeps of them: equal values and files are one run, and finished runs are kept."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import COMPARISON
from scheduler.sim.figures.summary import KEYS
from scheduler.sim.run import FILES, Run
from scheduler.sim.runs import key, prepare, settings_of
from scheduler.sim.sweep import Figures, Finished, Processes, Ray, Results, carry_out, grid, run_of, sweep
from scheduler.sim.tables import with_errors
from tests.support.wording import Wording
from traces.errors import TraceError
from traces.roofline import default_throughputs

SIX = Run(cluster={"a100": 8}, workload="mixed-day", rate_per_h=6.0, jobs=6)
AXES = {"rate_per_h": [1.0], "seed": [0, 1], "policy": ["las", "fifo"]}
# Every field that is not a file, with a value that is not its default.
EVERYTHING: dict[str, Any] = {
    "policy": "fifo",
    "workload": "mixed-day",
    "rate_per_h": float("inf"),
    "jobs": 7,
    "hours": 2.5,
    "subtrace": "a",
    "repair": True,
    "measured": "x",
    "measure": (1, 6),
    "ideal": True,
    "seed": 5,
    "cluster": {"v100": 4, "k80": 8},
    "gpus_per_node": 8,
    "comparison": True,
    "round_s": 60.0,
    "min_reallocation_s": 120.0,
    "restart_s": 5.0,
    "checkpoint_s": 2.0,
    "save_every_s": 900.0,
    "renewal_restarts": True,
    "rate_noise": 0.1,
    "rate_error": 0.3,
    "solver_latency_s": 3.0,
    "report_interval_s": 600.0,
    "mtbf_h": 20.0,
    "repair_h": 2.0,
    "prices": {"v100": 1.5},
    "cloud": "c",
    "notice_s": 30.0,
}


class FakeEngine:
    """An engine that returns made-up figures, and fails for some policies."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.started: list[Run] = []

    def carry_out(self, runs: Sequence[Run], progress: Callable[[float], None]) -> Finished:
        """Finish all runs at once, the last one first."""
        for number, run in reversed(list(enumerate(runs))):
            self.started.append(run)
            bad = run.policy in self.failing
            yield number, {"error": "no memory"} if bad else figures_of(run)
            progress(1 - number / len(runs))


def figures_of(run: Run) -> Figures:
    """Figures by which a run can be recognised."""
    return {**dict.fromkeys(KEYS), "policy": run.policy, "seed": run.seed}


def test_the_grid_has_every_combination_once() -> None:
    """Two policies, rates, seeds and clusters give 16 runs; a policy that is listed twice is run once."""
    runs = grid(
        SIX,
        {
            "cluster": [{"a100": 8}, {"h100": 8}],
            "rate_per_h": [1.0, 2.0],
            "seed": [0, 1],
            "policy": ["las", "fifo", "las"],
        },
    )
    assert len(runs) == 16
    assert len({key(run) for run in runs}) == 16


def test_the_key_is_of_values_and_contents(tmp_path: Path) -> None:
    """The key changes with values and with contents of files, but not with the names of files."""
    assert key(SIX) == key(msgspec.structs.replace(SIX, repair_h=1.0))
    assert key(SIX) != key(msgspec.structs.replace(SIX, seed=1))
    keys = []
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).write_text(text)
        keys.append(key(Run(cluster={"a100": 8}, trace=str(tmp_path / name))))
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(TraceError, match="cannot be read"):
        key(Run(cluster={"a100": 8}, trace=str(tmp_path / "missing")))


# Files and other fields of runs that release 0.1.0 did not have.
LATER_FILES = ("plans",)
LATER_FIELDS = ("pair_rates", "references", "pairs_probed", "cpus_per_node", "fixed_cpus")


def test_keys_never_change(tmp_path: Path) -> None:
    """Keys are those of earlier releases, so that their sweeps can be continued."""
    file = tmp_path / "trace.csv"
    file.write_text("one")
    assert key(SIX) == "b85e99afdfb67dcee9001200"
    assert key(Run(**EVERYTHING)) == "835c834724ebbfc8d3d4d2c3"
    files = dict.fromkeys((name for name in FILES if name not in LATER_FILES), str(file))
    assert key(Run(**EVERYTHING, **files)) == "e90baec15bcbffabab08ae23"
    assert {*EVERYTHING, *LATER_FIELDS, *FILES, "policy_files"} == set(Run.__struct_fields__)


def test_a_run_survives_json() -> None:
    """A run written as JSON and read back is the same, an infinite rate included."""
    run = Run(
        cluster={"a100": 8}, workload="x", rate_per_h=float("inf"), measure=(1, 2), prices={"a100": 1.0}
    )
    assert run_of(json.loads(json.dumps(run.data, allow_nan=False))) == run


def test_finished_runs_are_kept_and_failed_ones_tried_again(tmp_path: Path) -> None:
    """After a sweep in which some runs failed, the next one starts only those."""
    runs, results = grid(SIX, AXES), Results(tmp_path)
    first = sweep(runs, results, FakeEngine("fifo"))
    assert first == [figures_of(run) if run.policy == "las" else "no memory" for run in runs]
    engine = FakeEngine()
    assert sweep(runs, results, engine) == [figures_of(run) for run in runs]
    assert {run.policy for run in engine.started} == {"fifo"}
    engine = FakeEngine()
    assert sweep(runs, results, engine) == [figures_of(run) for run in runs]
    assert engine.started == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"figures": 3}', '{"figures": {"jobs": 1}}', "null"])
def test_an_incomplete_result_is_not_loaded(text: str, tmp_path: Path) -> None:
    """A result that is cut off, empty, or of another version does not count."""
    results = Results(tmp_path)
    assert results.load(SIX) is None
    results.path(SIX).write_text(text)
    assert results.load(SIX) is None


def test_progress_only_grows(tmp_path: Path) -> None:
    """Progress grows from the kept results to all of them."""
    reports: list[tuple[int, float]] = []
    runs = grid(SIX, AXES)
    Results(tmp_path).save(runs[0], figures_of(runs[0]))
    sweep(
        runs,
        Results(tmp_path),
        FakeEngine(),
        progress=lambda finished, part: reports.append((finished, part)),
    )
    assert reports == sorted(reports)
    assert (reports[0], reports[-1]) == ((1, 0.25), (4, 1.0))


def test_an_interruption_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    """After Ctrl-C in the middle, the finished runs are kept for the next time."""
    runs, results = grid(SIX, AXES), Results(tmp_path)

    def stop(finished: int, part: float) -> None:
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(runs, results, FakeEngine(), progress=stop)
    assert sum(results.load(run) is not None for run in runs) == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_processes_give_the_figures_of_one_process(wording: Wording) -> None:
    """The figures are the same but for the wall time; an impossible run does not stop the other."""
    bad = msgspec.structs.replace(SIX, policy="lass")
    figures = dict(Processes(2).carry_out([SIX, bad], lambda part: None))
    here = carry_out(SIX)
    assert {**figures[0], "wall_s": 0} == {**here, "wall_s": 0}
    assert "'lass'" in figures[1]["error"]
    wording(figures[1]["error"])
    assert dict(Processes(1).carry_out([], lambda part: None)) == {}


class FakeRay:
    """The part of Ray that is used."""

    def __init__(self) -> None:
        self.started = False

    def is_initialized(self) -> bool:
        """Whether `init` was called."""
        return self.started

    def init(self, **options: object) -> None:
        """Start it."""
        self.started = True

    def remote(self, **options: object) -> Callable[[Callable[..., object]], object]:
        """Wrap a function so that its calls are references."""

        class Remote:
            def __init__(self, function: Callable[..., object]) -> None:
                self.function = function

            def remote(self, data: dict[str, object]) -> tuple[object, str]:
                return self.function, json.dumps(data)

        return Remote

    def wait(self, waiting: list[object], timeout: float) -> tuple[list[object], list[object]]:
        """Report the last call as done."""
        return waiting[-1:], waiting[:-1]

    def get(self, reference: tuple[Callable[..., object], str]) -> object:
        """Carry out the call."""
        function, data = reference
        return function(json.loads(data))


def test_ray_gets_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs travel as JSON; figures and errors come back by the number of their run."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    bad = msgspec.structs.replace(SIX, policy="lass")
    figures = dict(Ray().carry_out([SIX, bad], lambda part: None))
    assert tuple(figures[0]) == KEYS
    assert "'lass'" in figures[1]["error"]
    assert "\n" not in figures[1]["error"]


def test_comparison_settings_are_those_of_the_published_figures() -> None:
    """`comparison` means one GPU per node, free restarts and its settings, each of which can be overridden."""
    run = msgspec.structs.replace(SIX, comparison=True, cluster={"a100": 16})
    prepared = prepare(run).options
    assert prepared.settings == msgspec.structs.replace(COMPARISON, policy="las")
    assert (prepared.gpus_per_node, prepared.restart_s, prepared.checkpoint_s) == (1, 0.0, 0.0)
    assert (prepared.report_interval_s, prepare(SIX).options.report_interval_s) == (86_400.0, 3600.0)
    other = msgspec.structs.replace(run, gpus_per_node=8, restart_s=5.0, round_s=60.0, report_interval_s=60.0)
    assert prepare(other).options.report_interval_s == 60.0
    assert prepare(other).options.gpus_per_node == 8
    assert prepare(other).options.restart_s == 5.0
    assert prepare(other).options.settings.round_s == 60.0


def test_short_rounds_are_planned_less_early() -> None:
    """The leads of a round of ten seconds are shorter than the round."""
    settings = settings_of(msgspec.structs.replace(SIX, round_s=10.0))
    assert settings.plan_lead_s <= settings.solve_lead_s < 10.0


def test_mistaken_rates_are_wrong_the_same_way_each_time() -> None:
    """The error is a factor by job type and worker type, the same for all widths; zero stays zero."""
    table = default_throughputs()
    wrong = with_errors(table, 0.3, seed=1)
    assert wrong.solo == with_errors(table, 0.3, seed=1).solo
    assert wrong.solo != with_errors(table, 0.3, seed=2).solo
    factors = {
        gpus: wrong.rate("resnet50", gpus, "v100") / table.rate("resnet50", gpus, "v100") for gpus in (1, 4)
    }
    assert factors[1] == pytest.approx(factors[4])
    assert factors[1] != pytest.approx(1.0)
    assert {k for k, rate in wrong.solo.items() if rate == 0} == {
        k for k, rate in table.solo.items() if rate == 0
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cluster": {}}, "cluster"),
        ({"cluster": {"a100": 0}}, "cluster"),
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"jobs": 0}, "jobs"),
        ({"cpus_per_node": 0.0}, "cpus_per_node"),
        ({"cpus_per_node": float("nan")}, "cpus_per_node"),
        ({"cpus_per_node": 24.0}, "cpus_per_node"),
        ({"fixed_cpus": True}, "fixed_cpus"),
        ({"rate_per_h": float("nan")}, "rate_per_h"),
        ({"rate_noise": -1.0}, "rate_noise"),
        ({"restart_s": float("nan")}, "restart_s"),
        ({"report_interval_s": 0.0}, "report_interval_s"),
        ({"measure": (3, 3)}, "measure"),
        ({"measure": (0, 7)}, "measure"),
        ({"prices": {"a100": float("nan")}}, "prices"),
        ({"round_s": float("nan")}, "round_s"),
        ({"mtbf_h": 0.0}, "mtbf_h"),
    ],
)
def test_an_impossible_run_is_refused_by_its_field(change: dict[str, object], field: str) -> None:
    """A run made in Python, without a command line, is checked as well."""
    with pytest.raises(InvalidSpec) as refused:
        prepare(msgspec.structs.replace(SIX, **change))
    assert refused.value.field == field
