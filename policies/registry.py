"""Policies by name: a decorator, discovery of every module here, and what is done around every policy.

The modifiers of a spec are blind (ignore speed differences) and packing (two jobs on the same GPUs).
A policy's function always receives jobs that can run somewhere, sorted by id, with interchangeable jobs merged. Its
caller receives an answer for the original problem.
"""

from __future__ import annotations

import difflib
import inspect
import keyword
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

import policies
from policies.audit import as_answer
from policies.engine.checks import derived
from policies.engine.cpus import enough_cpus, fair_cpus
from policies.engine.grouping import FACTS, group
from policies.engine.quotas import add_as_exceeded, exceeded, not_too_wide, within
from policies.engine.solvers import time_limit
from policies.errors import (
    BrokenPolicy,
    InvalidAnswer,
    PolicyError,
    SolverFailure,
    UnknownPolicy,
    fault_of,
    name_some,
)
from policies.problem import Allocation, Bools, Floats, Policy, Problem, Quotas
from policies.reference import isolated_rates
from policies.specs import parse
from policies.transforms import Blind, runnable, with_pairs, without_pairs

# Shares and prices below this are rounding errors of solvers.
DUST = 1e-10


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered policy: what `gavel policies` shows and what `resolve` needs.

    `reads` are facts of jobs beyond rates, width and weight: jobs that differ in them are not merged. `also` are facts
    that affect the answer but do not distinguish jobs. `spread`: +blind spreads its shares over worker types; False if
    the choice of type matters. `pairs`: it always receives the columns of pairs, with or without +packing. `optimum`:
    its shares are an optimum, so quotas that they keep need not be in the problem. `origin`: the file or the package
    that defines it; empty for Gavel's own.
    """

    name: str
    aliases: tuple[str, ...]
    function: Callable[..., Allocation]
    reads: tuple[str, ...]
    spread: bool
    pairs: bool
    also: tuple[str, ...] = ()
    optimum: bool = True
    origin: str = ""

    @property
    def file(self) -> str:
        """The file of the function, as it appears in tracebacks."""
        return str(inspect.unwrap(self.function).__code__.co_filename)

    @property
    def facts(self) -> tuple[str, ...]:
        """The fields of a problem, beside rates, widths and weights, that affect the answer."""
        return tuple(fact for fact in dict.fromkeys((*self.reads, *self.also)) if fact != "id")

    @property
    def objective(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split())

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Keyword-only parameters of the function with their defaults."""
        signature = inspect.signature(self.function)
        return {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


_entries: dict[str, Entry] = {}
# The full name of each policy, by full name and by alias.
_names: dict[str, str] = {}
_origin: ContextVar[str] = ContextVar("origin", default="")
# By module, file or package, why its policies are missing.
broken: dict[str, str] = {}


def policy(
    *names: str,
    reads: Sequence[str] = (),
    spread: bool = True,
    pairs: bool = False,
    also: Sequence[str] = (),
    optimum: bool = True,
) -> Callable[[Callable[..., Allocation]], Callable[..., Allocation]]:
    """Register a pure function `Problem -> Allocation` under a name and its aliases; see Entry for the options."""
    if not names or not all(isinstance(name, str) and _is_name(name) for name in names):
        raise BrokenPolicy('a policy needs a name of letters, digits and _, such as @policy("my_policy")')
    unknown = [fact for fact in reads if fact not in FACTS]
    if unknown:
        raise BrokenPolicy(f"reads: there is no fact {unknown[0]!r}; the facts are {', '.join(FACTS)}")

    def register(function: Callable[..., Allocation]) -> Callable[..., Allocation]:
        if not inspect.isfunction(function):
            raise BrokenPolicy(
                f"{names[0]}: a policy is a function, but this is of type {type(function).__name__}"
            )
        origin = _origin.get()
        entry = Entry(
            names[0], names[1:], function, tuple(reads), spread, pairs, tuple(also), optimum, origin
        )
        for name in names:
            other = _entries.get(_names.get(name, ""))
            # A module of Gavel's own may be reloaded.
            if other and (origin or other.function.__module__ != function.__module__):
                owner = other.origin or "Gavel"
                raise BrokenPolicy(f"the name '{name}' is taken: {owner} has a policy '{other.name}'")
        missing = [name for name, default in entry.parameters.items() if default is inspect.Parameter.empty]
        if missing:
            raise BrokenPolicy(f"{entry.name}: the parameter '{missing[0]}' needs a default")
        _names.update(dict.fromkeys(names, entry.name))
        _entries[entry.name] = entry
        return function

    return register


def _is_name(text: str) -> bool:
    """Return whether this can be the name of a policy in a spec."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


@contextmanager
def registered_from(origin: str, wrap: Callable[[Entry], Entry] = lambda entry: entry) -> Iterator[list[str]]:
    """Register the policies of this block under their origin, or none of them if the block raises.

    Yields a list that has their names after the block. Each entry is replaced by `wrap` of it.
    """
    _discover()
    with _all_or_none():
        before, token = set(_entries), _origin.set(origin)
        registered: list[str] = []
        try:
            yield registered
        finally:
            _origin.reset(token)
        registered += sorted(set(_entries) - before)
        _entries.update({name: wrap(_entries[name]) for name in registered})


@contextmanager
def _all_or_none() -> Iterator[None]:
    """Undo every registration of this block if it raises."""
    entries, names = dict(_entries), dict(_names)
    try:
        yield
    except BaseException:
        _entries.clear()
        _entries.update(entries)
        _names.clear()
        _names.update(names)
        raise


def forget(origin: str) -> None:
    """Remove the policies of a file or package."""
    for name in [name for name, known in _entries.items() if known.origin == origin]:
        del _entries[name]
    for name in [name for name, full in _names.items() if full not in _entries]:
        del _names[name]


@cache
def _discover() -> None:
    """Import every module of this package; those that fail are noted in `broken`."""
    for module in pkgutil.iter_modules(policies.__path__):
        try:
            with _all_or_none():
                import_module(f"policies.{module.name}")
        except (Exception, SystemExit) as error:
            file = f"{policies.__path__[0]}/{module.name}.py"
            broken[file] = fault_of(error, file)


def names() -> tuple[str, ...]:
    """Return the full name of every registered policy."""
    _discover()
    return tuple(sorted(_entries))


def entry(name: str) -> Entry:
    """Return the entry of a policy, by name or alias."""
    _discover()
    if name not in _names:
        also = f"; could not be loaded: {next(iter(broken.values()))}" if broken else ""
        raise UnknownPolicy(f"unknown policy '{name}'{_nearest(name, _names)}{also}")
    return _entries[_names[name]]


def entry_of(spec: str) -> Entry:
    """Return the entry of the policy in a spec, without its modifiers."""
    return entry(parse(spec)[0][0])


def is_known(spec: str) -> bool:
    """Return whether the policy of this spec is registered."""
    _discover()
    return parse(spec)[0][0] in _names


def reads(spec: str, fact: str) -> bool:
    """Return whether the answers of this policy depend on this field of a problem."""
    return fact in entry_of(spec).facts


def resolve(spec: str, time_limit_s: float | None = None, *, merge: bool = True) -> Policy:
    """Return the policy of this spec as a function; the limit is for all its solvers together.

    Without `merge`, each job has a row of its own. The answer must be as good, but takes longer.
    """
    (name, arguments), *modifiers = parse(spec)
    chosen = entry(name)
    unknown = [key for key in arguments if key not in chosen.parameters]
    if unknown:
        known = ", ".join(chosen.parameters) or "none"
        raise UnknownPolicy(f"policy '{chosen.name}' has no parameter '{unknown[0]}' (it has: {known})")
    options = dict(modifiers)
    if len(options) != len(modifiers):
        raise UnknownPolicy(f"'{spec}': a modifier appears twice")
    for modifier, parameters in options.items():
        if modifier not in _MODIFIERS:
            raise UnknownPolicy(f"'{spec}': unknown modifier '{modifier}'{_nearest(modifier, _MODIFIERS)}")
        wrong = [key for key in parameters if key not in _MODIFIERS[modifier]]
        if wrong:
            raise UnknownPolicy(f"'{spec}': modifier '{modifier}' has no parameter '{wrong[0]}'")

    if not merge:
        chosen = replace(chosen, reads=(*chosen.reads, "id"))

    def run(problem: Problem) -> Allocation:
        started = time.perf_counter()
        with time_limit(time_limit_s):
            answer = _run(chosen, arguments, options, problem)
        return replace(answer, policy=spec, solve_s=time.perf_counter() - started)

    return run


_MODIFIERS: dict[str, tuple[str, ...]] = {"blind": ("reference",), "packing": ()}


def _run(
    chosen: Entry, arguments: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], problem: Problem
) -> Allocation:
    """Call the policy on the jobs and columns that can run, and return the answer for the whole problem."""
    rows, columns = runnable(problem)
    notes: tuple[str, ...] = ()
    if len(rows) < len(problem.jobs):
        left_out = np.delete(np.arange(len(problem.jobs)), rows)
        ids = sorted(problem.jobs.ids[row] for row in left_out)
        why = "they have no positive rate on any worker type of the cluster"
        if not not_too_wide(problem).all():
            why += ", or no quota admits them"
        if not enough_cpus(problem).all():
            why += ", or none has the CPUs that they need"
        notes = (f"left out, because {why}: {name_some(ids)}",)
    share, backfill = np.zeros(len(problem.columns)), np.zeros(len(problem.columns), dtype=bool)
    isolated = np.zeros(len(problem.jobs))
    if not rows.size:
        price = np.zeros(len(problem.worker_types))
        return Allocation(chosen.name, share, 0.0, price, isolated, backfill, notes=notes)
    visible = problem.restrict(rows, columns)
    inner = add_as_exceeded(
        visible,
        lambda relaxed: _solve(chosen, arguments, options, relaxed),
        lambda answer: exceeded(visible, answer.time_share),
        all_at_once=not chosen.optimum,
    )
    share[columns] = np.where(inner.time_share < DUST, 0.0, inner.time_share)
    backfill[columns] = inner.backfill
    isolated[rows] = inner.isolated_rate
    # No job can run on a type without GPUs, so the value of its first GPU is unknown.
    price = np.where(np.abs(inner.price) * problem.capacity < DUST * abs(inner.value), 0.0, inner.price)
    price = np.where(problem.capacity > 0, price, np.nan)
    notes += inner.notes + _too_wide(problem, share)
    return Allocation(chosen.name, share, inner.value, price, isolated, backfill, inner.optimal, notes=notes)


def _too_wide(problem: Problem, share: Floats) -> tuple[str, ...]:
    """Return a note on jobs with a share on a type that has too few GPUs for them."""
    columns = problem.columns
    wide = (columns.gpus > problem.capacity[columns.worker_type]) & (share > 1e-6)
    if not wide.any():
        return ()
    ids = dict.fromkeys(problem.jobs.ids[row] for row in columns.first[wide].tolist())
    return (f"part of the share is on a type with fewer GPUs than the job is wide: {name_some(ids)}",)


def _solve(
    chosen: Entry,
    arguments: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    problem: Problem,
) -> Allocation:
    """Apply modifiers and grouping, call the policy, and return its answer for the columns of the problem."""
    if "blind" in options and not (fair := fair_cpus(problem)).all():
        # A policy that does not know how fast types are does not know either what more CPUs would do.
        narrowed = problem.restrict(np.arange(len(problem.jobs)), np.flatnonzero(fair))
        return _among(fair, _solve(chosen, arguments, options, narrowed))
    blind = Blind.of(problem, **options["blind"]) if "blind" in options else None
    visible = blind.problem if blind else problem
    keep = with_pairs(visible) if chosen.pairs or "packing" in options else without_pairs(visible)
    if not keep.all():
        visible = visible.restrict(np.arange(len(visible.jobs)), np.flatnonzero(keep))
    grouped, ungroup = group(visible, chosen.reads)
    answer = _call(chosen, arguments, grouped)
    if blind and chosen.spread:
        answer = replace(answer, time_share=blind.spread(grouped, answer.time_share))
    answer = ungroup(answer)
    return answer if keep.all() else _among(keep, answer)


def _among(chosen: Bools, answer: Allocation) -> Allocation:
    """Return an answer for the chosen columns as one for all columns; the others have no share."""
    shares, backfill = np.zeros(len(chosen)), np.zeros(len(chosen), dtype=bool)
    shares[chosen], backfill[chosen] = answer.time_share, answer.backfill
    return replace(answer, time_share=shares, backfill=backfill)


def _call(chosen: Entry, arguments: Mapping[str, Any], problem: Problem) -> Allocation:
    """Return the policy's own answer. Raise BrokenPolicy if its code fails, or if this is no answer to the problem."""
    try:
        answer: object = chosen.function(problem, **arguments)
    except SolverFailure as failure:
        isolated = entry("isolated").function(problem)
        why = f"no solver answered ({failure}): these are the isolated shares instead"
        return replace(isolated, optimal=False, notes=(*isolated.notes, why))
    except PolicyError:
        raise
    except (Exception, SystemExit) as error:
        raise BrokenPolicy(f"{chosen.name}: {fault_of(error, chosen.file)}") from error
    if not isinstance(answer, Allocation):
        kind = "nothing" if answer is None else f"a value of type {type(answer).__name__}"
        raise InvalidAnswer(
            f"{chosen.name} must return an Allocation, but returned {kind} ({_lines(chosen)})"
        )
    if not chosen.origin:
        return answer
    try:
        unlimited = np.full(len(problem.worker_types), np.inf)
        clean = as_answer(derived(problem, quotas=Quotas(), cpus=unlimited), answer)
    except InvalidAnswer as fault:
        raise InvalidAnswer(f"{chosen.name} returned an invalid answer: {fault} ({_lines(chosen)})") from None
    # Policies of users need to know neither quotas nor CPUs.
    return replace(clean, time_share=within(problem, clean.time_share))


def _lines(chosen: Entry) -> str:
    """Return where a policy's function begins: `my.py, line 7`."""
    return f"{chosen.file}, line {inspect.unwrap(chosen.function).__code__.co_firstlineno}"


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(sorted(known))}"


def unsolved(problem: Problem) -> dict[str, Any]:
    """Return the fields of an Allocation that a policy without a linear program cannot compute."""
    return {
        "price": np.full(len(problem.worker_types), np.nan),
        "isolated_rate": isolated_rates(problem),
        "backfill": np.ones(len(problem.columns), dtype=bool),
    }
