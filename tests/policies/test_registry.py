"""Policies by name: how a spec is read, what is refused and in which words, and what happens around a policy."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from policies import registry
from policies.audit import audit
from policies.engine import solvers
from policies.engine.solvers import Answer, LinearProgram
from policies.errors import MissingFacts, PolicyError, SolverFailure, UnknownPolicy
from policies.problem import Allocation, Problem
from policies.registry import Entry, entry, names, policy, resolve, unsolved
from tests.support.problems import alone, by_hand, random_problem, together

ALIASES = {
    "las": "max_min_fairness",
    "ftf": "finish_time_fairness",
    "min_total_duration": "makespan",
    "sjf": "shortest_job_first",
}
LINEAR = ("las", "water_filling", "hierarchical", "ftf", "makespan", "sjf", "max_throughput", "min_cost")


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of one's own: what a test registers is gone afterwards."""
    names()
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(registry, "_names", dict(registry._names))


def only(monkeypatch: pytest.MonkeyPatch, *solver) -> None:
    """Solve with nothing but these."""
    monkeypatch.setattr(solvers, "_CHAIN", [(f"solver {i}", solve) for i, solve in enumerate(solver)])


def fails(program: LinearProgram) -> Answer:
    """A solver that has a bad day."""
    raise SolverFailure("had a bad day")


def stops_early(program: LinearProgram) -> Answer:
    """A solver that runs out of time at the optimum without having proven it."""
    return replace(solvers._highs(program), optimal=False)


# --------------------------------------------------------------------------------------------- what there is


def test_every_policy_of_the_table_is_there() -> None:
    """Discovery finds the modules by themselves: the names that people know, once each, in order."""
    table = """allox fifo finish_time_fairness gandiva hierarchical isolated makespan max_min_fairness max_throughput
               min_cost shortest_job_first strategy_proof throughput_per_cost water_filling"""
    assert names() == tuple(table.split())


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_the_policy(alias: str, name: str) -> None:
    """The same function under both names; the answer carries the name that was asked for."""
    assert entry(alias) is entry(name)
    assert alias in entry(name).aliases
    problem = random_problem(1)
    asked, full = resolve(alias)(problem), resolve(name)(problem)
    assert np.array_equal(asked.time_share, full.time_share)
    assert (asked.policy, full.policy) == (alias, name)


@pytest.mark.parametrize("name", names())
def test_what_is_said_of_a_policy_fits_on_a_line(name: str) -> None:
    """An objective without line breaks, parameters that all have defaults."""
    known = entry(name)
    assert known.objective
    assert "\n" not in known.objective
    assert inspect.Parameter.empty not in known.parameters.values()
    assert resolve(name)(random_problem(1, widths=(1,))).policy == name


def test_parameters_with_their_defaults() -> None:
    """What `gavel policies` shows."""
    assert dict(entry("min_cost").parameters) == {"premium": 0.1}
    assert dict(entry("max_throughput").parameters) == {"raw": False}
    assert dict(entry("las").parameters) == {}


# --------------------------------------------------------------------------------------------- reading a spec


CHEAP = by_hand(
    {"v100": 1, "k80": 1},
    *(alone("a", kind, rate) for kind, rate in (("v100", 10.0), ("k80", 4.0))),
    price_per_gpu_hour=[3.0, 1.0],
)


@pytest.mark.parametrize(
    ("spec", "v100_hours"),
    [
        ("min_cost", 0.0),  # 0.30 a step there, 0.25 here: too dear
        ("min_cost(premium=0.2)", 1.0),  # a fifth more is 0.30
        ("min_cost(premium=0)", 0.0),
        (" min_cost( premium = 2e-1 ) ", 1.0),
        ("min_cost(premium=0.2)+blind(reference=v100)", 0.0),  # as fast on both, it looks at the price alone
        ("min_cost(premium=0.2)+blind(reference='v100')+packing", 0.0),
        ("max_throughput(raw=true)", 1.0),
        ("max_throughput(raw=True) + packing", 1.0),
    ],
)
def test_a_spec_is_read_as_it_is_written(spec: str, v100_hours: float) -> None:
    """Parameters and modifiers reach the policy; quotes, spaces and the case of `true` are no matter."""
    assert resolve(spec)(CHEAP).time_share[0] == pytest.approx(v100_hours, abs=1e-5)


REFUSED = [
    ("lass", "unknown policy 'lass'; did you mean 'las'?"),
    ("water-filling", "'water-filling': cannot read 'water - filling'; expected name or name(parameter=value)"),
    ("", "'' is not a policy; expected something like 'las+packing' or 'min_cost(premium=0.2)'"),
    ("las+", "'las+' is not a policy; expected something like 'las+packing' or 'min_cost(premium=0.2)'"),
    ("las+packed", "'las+packed': unknown modifier 'packed'; did you mean 'packing'?"),
    ("las+zzz", "'las+zzz': unknown modifier 'zzz'; known are blind, packing"),
    ("las+blind+blind", "'las+blind+blind': a modifier appears twice"),
    ("las(raw=true)", "policy 'max_min_fairness' has no parameter 'raw' (it has: none)"),
    ("min_cost(premum=1)", "policy 'min_cost' has no parameter 'premum' (it has: premium)"),
    ("las+blind(ref=k80)", "'las+blind(ref=k80)': modifier 'blind' has no parameter 'ref'"),
    ("las+packing(x=1)", "'las+packing(x=1)': modifier 'packing' has no parameter 'x'"),
    ("min_cost(0.2)", "'min_cost(0.2)': cannot read 'min_cost(0.2)'; expected name or name(parameter=value)"),
    ("min_cost(premium=1/3)", "'min_cost(premium=1/3)': '1 / 3' is not a plain value"),
    ("las*2", "'las*2': cannot read 'las * 2'; expected name or name(parameter=value)"),
    ("os.system('x')", "'os.system('x')': cannot read 'os.system('x')'; expected name or name(parameter=value)"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_a_spec_that_cannot_be(spec: str, words: str) -> None:
    """Refused when it is resolved, before any problem is at hand, with the nearest name where there is one."""
    with pytest.raises(UnknownPolicy) as refused:
        resolve(spec)
    assert str(refused.value) == words


def test_a_name_like_no_other_gets_the_list() -> None:
    """Nothing near: the error lists what there is."""
    with pytest.raises(UnknownPolicy, match=r"unknown policy 'quux'; known are allox, .*water_filling"):
        entry("quux")


@pytest.mark.parametrize(
    "spec", ["las(**{'a': 1})", "min_cost(premium=0.1, **x)", "las(x=1)(y=2)", "lambda: 0", "[las]"]
)
def test_python_that_is_no_spec(spec: str) -> None:
    """The grammar is Python's, the meaning is not: nothing is ever evaluated, and nothing silently ignored."""
    with pytest.raises(UnknownPolicy):
        resolve(spec)


# ------------------------------------------------------------------------------------------ registering one


@pytest.mark.usefixtures("desk")
def test_a_new_policy_is_a_decorated_function() -> None:
    """Registered under its names, given sorted and merged jobs, called with its parameters."""
    seen: list[Problem] = []

    @policy("half_of_it", "half", reads=("steps_left",))
    def half_of_it(problem: Problem, *, part: float = 0.5) -> Allocation:
        """a fixed part of the time for everybody

        Not on the line.
        """
        seen.append(problem)
        share = part * problem.jobs.count[problem.columns.first]
        return Allocation("half_of_it", share, part, **unsolved(problem))

    assert entry("half") == Entry("half_of_it", ("half",), half_of_it, ("steps_left",), True, False)
    assert entry("half").objective == "a fixed part of the time for everybody"
    problem = by_hand(
        {"v100": 9},
        *(alone(job, "v100", 4.0) for job in "cba"),
        steps_left=[1.0, 2.0, 1.0],
        ids=("c", "b", "a"),
    )
    answer = resolve("half(part=0.25)")(problem)
    assert answer.time_share.tolist() == [0.25] * 3
    assert seen[0].jobs.ids == ("a", "b")
    assert seen[0].jobs.count.tolist() == [2, 1]


@pytest.mark.usefixtures("desk")
def test_two_policies_of_one_name() -> None:
    """A name that is taken, as a name or as an alias, is refused, and nothing of the second policy stays behind."""

    def stranger(problem: Problem) -> Allocation:
        """another one"""
        raise NotImplementedError

    for taken in (("las",), ("something_new", "las")):
        with pytest.raises(UnknownPolicy, match="two modules register a policy named 'las'"):
            policy(*taken)(stranger)
    assert entry("las").name == "max_min_fairness"
    assert "something_new" not in names()
    with pytest.raises(UnknownPolicy, match="unknown policy 'something_new'"):
        entry("something_new")


# --------------------------------------------------------------------------------------- around every policy


@pytest.mark.parametrize("spec", [*names(), "las+packing+blind"])
def test_nobody_there(spec: str) -> None:
    """The empty problem has an empty answer, with or without GPUs."""
    for problem in (by_hand({"v100": 2, "k80": 1}), by_hand({"v100": 0})):
        answer = resolve(spec)(problem)
        assert audit(problem, answer) == []
        assert (len(answer.time_share), answer.value, answer.optimal, answer.notes) == (0, 0.0, True, ())


@pytest.mark.parametrize("spec", [*names(), "las+packing+blind"])
def test_who_cannot_run_anywhere_is_left_out_and_named(spec: str) -> None:
    """Jobs without a positive rate on any type there is: noted, no time, and the others are none the worse."""
    ways = [alone(job, "v100", rate) for job, rate in (("a", 4.0), ("stuck", 0.0), ("b", 2.0))]
    facts = {"steps_left": 50.0, "price_per_gpu_hour": 1.0}
    problem = by_hand({"v100": 1, "gone": 0}, *ways, alone("lost", "gone", 9.0), **facts)
    answer, without = (
        resolve(spec)(problem),
        resolve(spec)(by_hand({"v100": 1, "gone": 0}, ways[0], ways[2], **facts)),
    )
    assert (
        answer.notes[0]
        == "left out, having no positive rate on any worker type of the cluster: 'lost', 'stuck'"
    )
    assert answer.time_share[[0, 2]].tolist() == without.time_share.tolist()
    assert answer.time_share[[1, 3]].tolist() == [0.0, 0.0]
    assert not answer.backfill[[1, 3]].any()
    assert answer.isolated_rate[[1, 3]].tolist() == [0.0, 0.0]
    assert answer.value == without.value
    assert audit(problem, answer) == []


def test_nobody_can_run() -> None:
    """All left out: nothing to optimise, and a note."""
    answer = resolve("las")(by_hand({"v100": 1}, *(alone(f"j{m}", "v100", 0.0) for m in range(8))))
    assert answer.time_share.tolist() == [0.0] * 8
    assert answer.notes[0].endswith("'j0', 'j1', 'j2', 'j3', 'j4' and 3 more")


def test_pairs_are_for_packing() -> None:
    """Without the modifier pairs get no time and may not backfill; with it, those that pay may."""
    ways = [alone("a", "v100", 8.0), alone("b", "v100", 8.0), together(("a", "b"), "v100", (7.0, 7.0))]
    problem = by_hand({"v100": 1}, *ways)
    plain, packed = resolve("las")(problem), resolve("las+packing")(problem)
    assert plain.time_share[2] == 0.0
    assert plain.backfill.tolist() == [True, True, False]
    assert packed.time_share[2] == pytest.approx(1.0, abs=1e-6)
    assert packed.backfill.tolist() == [True, True, True]


# ---------------------------------------------------------------------------------------- trouble with solvers


@pytest.mark.parametrize("spec", LINEAR)
def test_an_answer_that_is_not_proven_says_so(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver stopped by the clock: its shares are used, if feasible, and `optimal` is False."""
    problem = random_problem(5, jobs=6)
    assert resolve(spec)(problem).optimal
    only(monkeypatch, stops_early)
    answer = resolve(spec)(problem)
    assert not answer.optimal
    assert audit(problem, answer) == []


@pytest.mark.parametrize("spec", [*LINEAR, "las+packing", "las+blind"])
def test_when_every_solver_fails_shares_are_isolated(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solver trouble never stops scheduling: everybody's own slice, and a note that says who failed how."""
    problem = random_problem(5, jobs=6, pairs=True)
    only(monkeypatch, fails, fails)
    answer = resolve(spec)(problem)
    if "blind" not in spec:
        assert answer.time_share == pytest.approx(resolve("isolated")(problem).time_share)
    assert not answer.optimal
    said = "solver 0: had a bad day; solver 1: had a bad day"
    assert f"no solver answered ({said}): these are the isolated shares instead" in answer.notes
    assert audit(problem, answer) == []


@pytest.mark.parametrize("name", names())
def test_a_limit_that_has_passed(name: str) -> None:
    """No time at all: still a feasible answer, and if it is not the policy's own, it says so."""
    problem = random_problem(6, jobs=6, widths=(1,))
    answer = resolve(name, time_limit_s=0.0)(problem)
    assert audit(problem, answer) == []
    assert answer.optimal or any(note.startswith("no solver answered") for note in answer.notes)
    assert name not in ("max_min_fairness", "water_filling", "makespan") or not answer.optimal


def test_a_generous_limit_changes_nothing() -> None:
    """The same shares with a limit that is not reached; the time taken is told."""
    problem = random_problem(6)
    free, limited = resolve("las")(problem), resolve("las", time_limit_s=600.0)(problem)
    assert np.array_equal(free.time_share, limited.time_share)
    assert 0.0 < limited.solve_s < 600.0


def test_missing_facts_are_not_solver_trouble() -> None:
    """A policy that lacks what it must know says so; no shares are made up."""
    problem = Problem.from_rates([[1.0], [2.0]], capacity=[1], steps_left=[9.0, np.inf])
    with pytest.raises(MissingFacts, match="shortest_job_first needs steps_left, which is missing for '1'"):
        resolve("sjf")(problem)
    assert issubclass(MissingFacts, PolicyError)
