"""Policies by name: how a spec is read, which specs are refused, and the work of the registry around a policy."""

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest

from policies import registry
from policies.audit import audit
from policies.engine import solvers
from policies.engine.solvers import Answer, LinearProgram
from policies.errors import BrokenPolicy, MissingFacts, PolicyError, SolverFailure, UnknownPolicy
from policies.problem import Allocation, Problem
from policies.registry import Entry, entry, names, policy, resolve, unsolved
from tests.support.problems import alone, by_hand, random_problem, together
from tests.support.wording import Wording

ALIASES = {
    "las": "max_min_fairness",
    "ftf": "finish_time_fairness",
    "min_total_duration": "makespan",
    "sjf": "shortest_job_first",
}
LINEAR = ("las", "water_filling", "hierarchical", "ftf", "makespan", "sjf", "max_throughput", "min_cost")


@pytest.fixture
def registry_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the registry by a copy, so that a test's policies are gone afterwards."""
    names()
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(registry, "_names", dict(registry._names))


def only(monkeypatch: pytest.MonkeyPatch, *solver) -> None:
    """Solve with these solvers only."""
    monkeypatch.setattr(solvers, "_CHAIN", [(f"solver {i}", solve) for i, solve in enumerate(solver)])


def fails(program: LinearProgram) -> Answer:
    """A solver that always fails."""
    raise SolverFailure("had a bad day")


def stops_early(program: LinearProgram) -> Answer:
    """A solver that reaches the optimum, and runs out of time before it has proven it."""
    return replace(solvers._highs(program), optimal=False)


# ------------------------------------------------------------------------------------------------- the table


def test_every_policy_of_the_table_is_there() -> None:
    """Discovery finds every module: each policy is listed once, in order."""
    table = """allox fifo finish_time_fairness gandiva hierarchical isolated makespan max_min_fairness max_throughput
               min_cost shortest_job_first strategy_proof throughput_per_cost water_filling"""
    assert names() == tuple(table.split())


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_the_policy(alias: str, name: str) -> None:
    """Both names lead to the same function; the answer has the name that was resolved."""
    assert entry(alias) is entry(name)
    assert alias in entry(name).aliases
    problem = random_problem(1)
    by_alias, by_name = resolve(alias)(problem), resolve(name)(problem)
    assert np.array_equal(by_alias.time_share, by_name.time_share)
    assert (by_alias.policy, by_name.policy) == (alias, name)


@pytest.mark.parametrize("name", names())
def test_the_objective_of_a_policy_fits_on_a_line(name: str) -> None:
    """The objective has no line breaks, and every parameter has a default."""
    known = entry(name)
    assert known.objective
    assert "\n" not in known.objective
    assert inspect.Parameter.empty not in known.parameters.values()
    assert resolve(name)(random_problem(1, widths=(1,))).policy == name


def test_parameters_with_their_defaults() -> None:
    """Parameters and defaults are those that `gavel policies` prints."""
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
        # A step costs 0.30 on the v100, 0.25 on the k80: too expensive.
        ("min_cost", 0.0),
        # A fifth more than 0.25 is 0.30.
        ("min_cost(premium=0.2)", 1.0),
        ("min_cost(premium=0)", 0.0),
        (" min_cost( premium = 2e-1 ) ", 1.0),
        # To a blind policy both types are equally fast, so only the price counts.
        ("min_cost(premium=0.2)+blind(reference=v100)", 0.0),
        ("min_cost(premium=0.2)+blind(reference='v100')+packing", 0.0),
        ("max_throughput(raw=true)", 1.0),
        ("max_throughput(raw=True) + packing", 1.0),
    ],
)
def test_a_spec_is_read_as_it_is_written(spec: str, v100_hours: float) -> None:
    """Parameters and modifiers reach the policy; quotes, spaces and the case of `true` do not matter."""
    assert resolve(spec)(CHEAP).time_share[0] == pytest.approx(v100_hours, abs=1e-5)


REFUSED = [
    "lass",
    "water-filling",
    "",
    "las+",
    "las+packed",
    "las+zzz",
    "las+blind+blind",
    "las(raw=true)",
    "min_cost(premum=1)",
    "las+blind(ref=k80)",
    "las+packing(x=1)",
    "min_cost(0.2)",
    "min_cost(premium=1/3)",
    "las*2",
    "os.system('x')",
]


@pytest.mark.parametrize("spec", REFUSED)
def test_a_bad_spec_is_refused(spec: str, wording: Wording) -> None:
    """A bad spec is refused when it is resolved, without a problem; the error suggests a similar name if one exists."""
    with pytest.raises(UnknownPolicy) as refused:
        resolve(spec)
    wording(refused.value)


def test_a_name_unlike_any_other_gets_the_list(wording: Wording) -> None:
    """Without a similar name the error lists all policies."""
    with pytest.raises(UnknownPolicy, match=r"'quux'.*allox, .*water_filling") as refused:
        entry("quux")
    wording(refused.value)


@pytest.mark.parametrize(
    "spec", ["las(**{'a': 1})", "min_cost(premium=0.1, **x)", "las(x=1)(y=2)", "lambda: 0", "[las]"]
)
def test_python_that_is_no_spec(spec: str) -> None:
    """A spec has Python's grammar, but nothing in it is ever evaluated, and nothing silently ignored."""
    with pytest.raises(UnknownPolicy):
        resolve(spec)


# ------------------------------------------------------------------------------------------ registering one


@pytest.mark.usefixtures("registry_copy")
def test_a_new_policy_is_a_decorated_function() -> None:
    """The decorator registers the function; it is called with sorted, merged jobs and with its parameters."""
    solved: list[Problem] = []

    @policy("half_of_it", "half", reads=("steps_left",))
    def half_of_it(problem: Problem, *, part: float = 0.5) -> Allocation:
        """a fixed part of the time for every job

        Not on the line.
        """
        solved.append(problem)
        share = part * problem.jobs.count[problem.columns.first]
        return Allocation("half_of_it", share, part, **unsolved(problem))

    assert entry("half") == Entry("half_of_it", ("half",), half_of_it, ("steps_left",), True, False)
    assert entry("half").objective == "a fixed part of the time for every job"
    problem = by_hand(
        {"v100": 9},
        *(alone(job, "v100", 4.0) for job in "cba"),
        steps_left=[1.0, 2.0, 1.0],
        ids=("c", "b", "a"),
    )
    answer = resolve("half(part=0.25)")(problem)
    assert answer.time_share.tolist() == [0.25] * 3
    assert solved[0].jobs.ids == ("a", "b")
    assert solved[0].jobs.count.tolist() == [2, 1]


@pytest.mark.usefixtures("registry_copy")
def test_two_policies_of_one_name(wording: Wording) -> None:
    """A name that exists, as a name or as an alias, is refused, and nothing of the second policy is registered."""

    def stranger(problem: Problem) -> Allocation:
        """another one"""
        raise NotImplementedError

    for repeated_names in (("las",), ("something_new", "las")):
        with pytest.raises(BrokenPolicy, match="'las'") as refused:
            policy(*repeated_names)(stranger)
        wording(refused.value)
    assert entry("las").name == "max_min_fairness"
    assert "something_new" not in names()
    with pytest.raises(UnknownPolicy, match="'something_new'"):
        entry("something_new")


# --------------------------------------------------------------------------------------- around every policy


@pytest.mark.parametrize("spec", [*names(), "las+packing+blind"])
def test_no_jobs(spec: str) -> None:
    """The empty problem has an empty answer, with or without GPUs."""
    for problem in (by_hand({"v100": 2, "k80": 1}), by_hand({"v100": 0})):
        answer = resolve(spec)(problem)
        assert audit(problem, answer) == []
        assert (len(answer.time_share), answer.value, answer.optimal, answer.notes) == (0, 0.0, True, ())


@pytest.mark.parametrize("spec", [*names(), "las+packing+blind"])
def test_a_job_that_can_run_nowhere_is_left_out_and_named(spec: str) -> None:
    """Jobs without a positive rate on any type are noted and get no time; the others get the same as without them."""
    ways = [alone(job, "v100", rate) for job, rate in (("a", 4.0), ("stuck", 0.0), ("b", 2.0))]
    facts = {"steps_left": 50.0, "price_per_gpu_hour": 1.0}
    problem = by_hand({"v100": 1, "gone": 0}, *ways, alone("lost", "gone", 9.0), **facts)
    answer, without = (
        resolve(spec)(problem),
        resolve(spec)(by_hand({"v100": 1, "gone": 0}, ways[0], ways[2], **facts)),
    )
    assert answer.notes[0].startswith("left out, ")
    assert answer.notes[0].endswith(": 'lost', 'stuck'")
    assert answer.time_share[[0, 2]].tolist() == without.time_share.tolist()
    assert answer.time_share[[1, 3]].tolist() == [0.0, 0.0]
    assert not answer.backfill[[1, 3]].any()
    assert answer.isolated_rate[[1, 3]].tolist() == [0.0, 0.0]
    assert answer.value == without.value
    assert audit(problem, answer) == []


def test_no_job_can_run(wording: Wording) -> None:
    """With every job left out there is nothing to optimise, and the note names the first five."""
    answer = resolve("las")(by_hand({"v100": 1}, *(alone(f"j{m}", "v100", 0.0) for m in range(8))))
    assert answer.time_share.tolist() == [0.0] * 8
    assert re.findall(r"'\w+'|\d+", answer.notes[0]) == ["'j0'", "'j1'", "'j2'", "'j3'", "'j4'", "3"]
    wording(answer.notes[0])


def test_pairs_are_for_packing() -> None:
    """Without the modifier pairs get no time and may not backfill; with it, pairs that pay may."""
    ways = [alone("a", "v100", 8.0), alone("b", "v100", 8.0), together(("a", "b"), "v100", (7.0, 7.0))]
    problem = by_hand({"v100": 1}, *ways)
    plain, packed = resolve("las")(problem), resolve("las+packing")(problem)
    assert plain.time_share[2] == 0.0
    assert plain.backfill.tolist() == [True, True, False]
    assert packed.time_share[2] == pytest.approx(1.0, abs=1e-6)
    assert packed.backfill.tolist() == [True, True, True]


# ------------------------------------------------------------------------------------------ solver failures


@pytest.mark.parametrize("spec", LINEAR)
def test_an_answer_that_is_not_proven_is_marked(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Feasible shares of a solver that was stopped by the clock are used, and `optimal` is False."""
    problem = random_problem(5, jobs=6)
    assert resolve(spec)(problem).optimal
    only(monkeypatch, stops_early)
    answer = resolve(spec)(problem)
    assert not answer.optimal
    assert audit(problem, answer) == []


@pytest.mark.parametrize("spec", [*LINEAR, "las+packing", "las+blind"])
def test_when_every_solver_fails_shares_are_isolated(
    spec: str, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Solver failures do not stop scheduling: every job gets its isolated share, with a note about the failure."""
    problem = random_problem(5, jobs=6, pairs=True)
    only(monkeypatch, fails, fails)
    answer = resolve(spec)(problem)
    if "blind" not in spec:
        assert answer.time_share == pytest.approx(resolve("isolated")(problem).time_share)
    assert not answer.optimal
    (note,) = [note for note in answer.notes if "solver 0: had a bad day; solver 1: had a bad day" in note]
    # The note does not depend on the policy.
    if spec == "las":
        wording(note)
    assert audit(problem, answer) == []


@pytest.mark.parametrize("name", names())
def test_a_limit_that_has_passed(name: str) -> None:
    """Without any time to solve, there is still a feasible answer, with a note if it is not the policy's own."""
    problem = random_problem(6, jobs=6, widths=(1,))
    answer = resolve(name, time_limit_s=0.0)(problem)
    assert audit(problem, answer) == []
    assert answer.optimal or any(note.startswith("no solver answered") for note in answer.notes)
    assert name not in ("max_min_fairness", "water_filling", "makespan") or not answer.optimal


def test_a_generous_limit_changes_nothing() -> None:
    """A limit that is not reached changes no share; the answer has its solve time."""
    problem = random_problem(6)
    free, limited = resolve("las")(problem), resolve("las", time_limit_s=600.0)(problem)
    assert np.array_equal(free.time_share, limited.time_share)
    assert 0.0 < limited.solve_s < 600.0


def test_missing_facts_are_not_solver_trouble(wording: Wording) -> None:
    """A policy without the facts it needs raises MissingFacts; it gets no substitute shares."""
    problem = Problem.from_rates([[1.0], [2.0]], capacity=[1], steps_left=[9.0, np.inf])
    with pytest.raises(MissingFacts, match=r"shortest_job_first .*steps_left.*'1'") as refused:
        resolve("sjf")(problem)
    wording(refused.value)
    assert issubclass(MissingFacts, PolicyError)
