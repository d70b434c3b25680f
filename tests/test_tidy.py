"""House style as tests: each rule reports its findings with their places, and the reason for the rule.

A rule is a function from a source file to its findings. Where breaking a rule is right, add a line to
EXCEPTIONS with the reason; an exception that is no longer needed fails as well.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tidy import voice  # noqa: F401 - registers its rules
from .tidy.source import (
    CODE,
    RULES,
    SHIPPED,
    Finding,
    Source,
    calls,
    docstring_lines,
    dotted,
    functions,
    names_imported,
    rule,
    sources,
)

FILE_LINES = 400
FUNCTION_LINES = 60

# These may measure how long something takes: `solve_s`, and the time limit of a solver.
STOP_WATCHES = ("policies/registry.py", "policies/engine/solvers.py")

# For a rule and the place of a finding, the reason why breaking the rule is right.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# ------------------------------------------------------------------------------------------- size and names


@rule
def short_files(source: Source) -> Iterator[Finding]:
    """A file of more than some 400 lines holds two subjects. Split it between them."""
    lines = source.text.count("\n")
    if source.is_in(*CODE) and source.path.endswith(".py") and lines > FILE_LINES:
        yield Finding(source.path, f"{lines} lines, {FILE_LINES} allowed")


@rule
def short_functions(source: Source) -> Iterator[Finding]:
    """A function beyond some 60 lines does several things: name them. Its docstring is not counted."""
    if not source.is_in(*SHIPPED, "benchmarks", "examples"):
        return
    for function in functions(source.tree):
        lines = function.end_lineno - function.lineno + 1 - docstring_lines(function)
        if lines > FUNCTION_LINES:
            yield Finding(f"{source.path}::{function.name}", f"{lines} lines, {FUNCTION_LINES} allowed")


@rule
def speaking_file_names(source: Source) -> Iterator[Finding]:
    """`utils`, `helpers`, `manager`, `common` name no subject, so such a file attracts anything. Name the subject."""
    empty = {"util", "utils", "helper", "helpers", "manager", "managers", "common"}
    if source.is_in(*CODE):
        for part in Path(source.path).with_suffix("").parts:
            if empty & set(part.lower().split("_")):
                yield Finding(source.path, f"'{part}' does not say what it holds")


UNITS_FIRST = re.compile(
    # A rate, such as ms_per_step, reads in its own order.
    r"(?!.*_per_)"
    r"(seconds|secs|sec|millis|ms|minutes|mins|hours|hrs|days|usd|dollars|bytes|kib|mib|gib|kb|mb|gb)_\w+"
)


@rule
def units_stand_last(source: Source) -> Iterator[Finding]:
    """Units stand last: `waited_s`, `latency_ms_max`, `price_usd`. The subject is read, and sorted, first."""
    if not source.is_in(*CODE):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.arg) and UNITS_FIRST.fullmatch(node.arg):
            yield Finding(f"{source.path}::{node.arg}", f"parameter '{node.arg}' starts with its unit")
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    name = field.target.id
                    if UNITS_FIRST.fullmatch(name):
                        yield Finding(
                            f"{source.path}::{node.name}.{name}", f"field '{name}' starts with its unit"
                        )


# ---------------------------------------------------------------------------------------------------- words


@rule
def modules_say_what_they_are(source: Source) -> Iterator[Finding]:
    """A module opens with what it is and which rules hold in it. (An empty `__init__.py` needs no words.)"""
    if source.is_in(*CODE) and source.tree.body and ast.get_docstring(source.tree) is None:
        yield Finding(source.path, "no module docstring")


@rule
def promises_in_words(source: Source) -> Iterator[Finding]:
    """A test's docstring is the promise that it proves: the reader of a failed run starts from it."""
    if source.is_in("tests"):
        for function in functions(source.tree):
            if function.name.startswith("test_") and ast.get_docstring(function) is None:
                yield Finding(f"{source.path}::{function.name}", "no docstring")


@rule
def no_machine_paths(source: Source) -> Iterator[Finding]:
    """A path of one machine works on one machine. Take it from the project root, an argument, `tmp_path`."""
    for path in re.finditer(r"(?<![\w.}/-])/(work|home|root|Users|tmp)/\w[^\s'\"`)]*", source.text):
        line = source.text.count("\n", 0, path.start()) + 1
        yield Finding(source.path, f"line {line}: '{path.group()}'")


# ---------------------------------------------------------------------------------------- policies are pure


@rule
def policies_do_not_print(source: Source) -> Iterator[Finding]:
    """A policy is a pure function. Remarks for users on an answer go into `Allocation.notes`."""
    if source.is_in("policies"):
        for call in calls(source.tree):
            if dotted(call.func) == "print":
                yield Finding(source.path, f"line {call.lineno}: print(…)")


@rule
def policies_see_no_clock(source: Source) -> Iterator[Finding]:
    """The time is `Problem.now_s`; with another clock, replays differ. Only STOP_WATCHES may measure durations."""
    if not source.is_in("policies"):
        return
    measures = source.path in STOP_WATCHES
    for line, name in names_imported(source.tree):
        if name.split(".")[0] in {"time", "datetime"} and not (
            measures and name in {"time", "time.perf_counter"}
        ):
            yield Finding(source.path, f"line {line}: imports {name}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"time\.(?!perf_counter$)\w+", dotted(node)):
            yield Finding(source.path, f"line {node.lineno}: {dotted(node)}")


@rule
def policies_draw_no_lots(source: Source) -> Iterator[Finding]:
    """Same problem, same answer. Chance comes from `Problem.seed`: hashes of it, or `default_rng(seed)`."""
    if not source.is_in("policies"):
        return
    for line, name in names_imported(source.tree):
        if name.split(".")[0] in {"random", "secrets", "uuid"}:
            yield Finding(source.path, f"line {line}: imports {name}")
    for call in calls(source.tree):
        name = dotted(call.func)
        if name.endswith("default_rng") and not (call.args or call.keywords):
            yield Finding(source.path, f"line {call.lineno}: {name}() without a seed")
        if re.fullmatch(r"(np|numpy)\.random\.[a-z_]+", name) and not name.endswith("default_rng"):
            yield Finding(source.path, f"line {call.lineno}: {name} draws from global state")


# ---------------------------------------------------------------------------------------------------- traps


@rule
def no_shell(source: Source) -> Iterator[Finding]:
    """A shell in between brings quoting faults and hides the exit status. Pass a list of arguments."""
    for call in calls(source.tree):
        through_shell = any(
            word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
            for word in call.keywords
        )
        if through_shell or dotted(call.func) in {"os.system", "os.popen"}:
            yield Finding(source.path, f"line {call.lineno}: runs a shell")


@rule
def no_bare_except(source: Source) -> Iterator[Finding]:
    """A bare `except:` also swallows Ctrl-C and the end of the process. Name what you can handle."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield Finding(source.path, f"line {node.lineno}: bare except")


@rule
def no_pickle(source: Source) -> Iterator[Finding]:
    """Unpickling runs any code in the file, and only this version of Gavel can read it. Use a documented format."""
    for line, name in names_imported(source.tree):
        if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}:
            yield Finding(source.path, f"line {line}: imports {name}")


# ------------------------------------------------------------------------------------------------ the tests


@pytest.fixture(scope="module")
def findings() -> dict[str, list[Finding]]:
    """The findings of every rule in the whole project."""
    everything = sources()
    return {
        name: [finding for source in everything for finding in check(source)] for name, check in RULES.items()
    }


@pytest.mark.parametrize("name", RULES)
def test_the_project_is_tidy(name: str, findings: dict[str, list[Finding]]) -> None:
    """Every rule holds everywhere, except for the exceptions with a reason."""
    broken = [finding for finding in findings[name] if (name, finding.where) not in EXCEPTIONS]
    places = "\n".join(f"  {finding.where}: {finding.fault}" for finding in broken)
    assert not broken, (
        f"{RULES[name].__doc__}\n{places}\n"
        f"(rule '{name}'; where breaking it is right, a line in EXCEPTIONS of tests/test_tidy.py says why)"
    )


def test_no_exception_is_stale(findings: dict[str, list[Finding]]) -> None:
    """Every exception is still needed, and has a reason."""
    needed = {(name, finding.where) for name, listed in findings.items() for finding in listed}
    assert set(EXCEPTIONS) - needed == set(), "no longer needed: delete these lines from EXCEPTIONS"
    assert [key for key, reason in EXCEPTIONS.items() if not reason.strip()] == []


def test_the_rules_read_the_project() -> None:
    """The rules read real files, this one among them; with a mistyped folder, every rule would pass."""
    paths = {source.path for source in sources()}
    assert {"tests/test_tidy.py", "setup.cfg", "Makefile", ".ci/run"} <= paths


LONG_BODY = "    x = 1\n" * FUNCTION_LINES

# A rule, a path, a file that breaks the rule, and a near miss that does not.
SAMPLES = [
    ("short_files", "policies/a.py", "x = 1\n" * (FILE_LINES + 1), "x = 1\n" * FILE_LINES),
    (
        "short_functions",
        "gavel/a.py",
        f"def f():\n{LONG_BODY}",
        f"def f():\n    '''a\n    b'''\n{LONG_BODY[10:]}",
    ),
    (
        "units_stand_last",
        "gavel/a.py",
        "def f(seconds_waited): ...",
        "def f(waited_s, steps_per_s, ms_per_step): ...",
    ),
    ("units_stand_last", "gavel/a.py", "class A:\n    usd_price: float", "class A:\n    price_usd: float"),
    ("modules_say_what_they_are", "policies/a.py", "import ast", "'''Says it.'''\nimport ast"),
    ("modules_say_what_they_are", "policies/__init__.py", "import ast", ""),
    (
        "promises_in_words",
        "tests/test_a.py",
        "def test_a(): ...",
        "def test_a():\n    '''Promise.'''",
    ),
    (
        "no_machine_paths",
        "docs/a.md",
        "see `/" + "home/me/x`",
        "see `../shared/data`, `a/home/x`, http://a.b/home/c",
    ),
    ("names_say_what_it_is", "gavel/a.py", "found = rows()", "rows_found = rows()"),
    ("names_say_what_it_is", "gavel/a.py", "def f(told): ...", "class A:\n    told: int"),
    ("names_say_what_it_is", "gavel/a.py", "for one in x: pass", "for row in one(x): pass"),
    ("names_say_what_it_is", "gavel/a.py", "def _told(): ...", "def told_twice(): ..."),
    (
        "comments_stand_above",
        "gavel/a.py",
        "STOP_S = 5.0  # how long calls in flight may take",
        "# How long calls in flight may take.\nSTOP_S = 5.0  # seconds of our clock",
    ),
    (
        "comments_stand_above",
        "gavel/a.py",
        "x = 1  # that we take",
        "x = 1  # noqa: E402 - as it is what we do",
    ),
    ("comments_stand_above", "gavel/a.py", "x = 1  # [n] what it is", "x = 1  # [T, c, n, m] tying rows"),
    (
        "comments_have_a_subject",
        "gavel/a.py",
        "# for which a batch waits\nGATHER_S = 1",
        "# How long we wait for a batch\n# which may never come.\nGATHER_S = 1",
    ),
    ("docstrings_say_what_it_does", "gavel/a.py", "def f():\n    '''By its id.'''", "'''Bytes by id.'''"),
    ("docstrings_say_what_it_does", "gavel/a.py", "'''The same.'''", "'''The same columns, sorted.'''"),
    ("docstrings_say_what_it_does", "gavel/a.py", "'''With which it gets one.'''", "'''Give it one.'''"),
    ("policies_do_not_print", "policies/a.py", "print(1)", "pprint(1)"),
    ("policies_see_no_clock", "policies/a.py", "import time", "import timeit_of_ours"),
    ("policies_see_no_clock", "policies/a.py", "from datetime import datetime", "from .time import x"),
    (
        "policies_see_no_clock",
        "policies/registry.py",
        "import time\ntime.time()",
        "import time\ntime.perf_counter()",
    ),
    ("policies_draw_no_lots", "policies/a.py", "import random", "from policies.gandiva import random_pairs"),
    ("policies_draw_no_lots", "policies/a.py", "np.random.default_rng()", "np.random.default_rng(seed)"),
    ("policies_draw_no_lots", "policies/a.py", "np.random.shuffle(x)", "generator.shuffle(x)"),
    ("no_shell", "gavel/a.py", "subprocess.run(c, shell=True)", "subprocess.run(c, shell=False)"),
    ("no_shell", "gavel/a.py", "os.system(c)", "os.path.join(c)"),
    ("no_bare_except", "gavel/a.py", "try: x()\nexcept: pass", "try: x()\nexcept OSError: pass"),
    ("no_pickle", "gavel/a.py", "def f():\n    from pickle import loads", "import pickles"),
]


@pytest.mark.parametrize(("name", "path", "bad", "good"), SAMPLES)
def test_rules_have_teeth(name: str, path: str, bad: str, good: str) -> None:
    """Each rule finds the fault in a bad sample and none in its near miss."""
    assert len(list(RULES[name](Source(path, bad)))) == 1
    assert list(RULES[name](Source(path, good))) == []


@pytest.mark.parametrize(
    ("path", "faults"),
    [("gavel/utils.py", 1), ("gavel/job_manager.py", 1), ("gavel/common/a.py", 1), ("gavel/uncommon.py", 0)],
)
def test_empty_file_names_are_found(path: str, faults: int) -> None:
    """Names that could hold anything are found in files and folders, and only as whole words."""
    assert len(list(RULES["speaking_file_names"](Source(path, "")))) == faults


def test_every_rule_has_a_bad_sample() -> None:
    """Every rule has a bad sample, because a check that cannot fail checks nothing."""
    assert {sample[0] for sample in SAMPLES} | {"speaking_file_names"} == set(RULES)
