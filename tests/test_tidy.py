"""House style as tests: each rule says what it found, where, and why it is a rule.

A rule is a function from a source file to its findings. Where breaking one is right, add a line to
EXCEPTIONS with the reason; an exception that is no longer needed fails as well.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("policies", "scheduler", "worker_agent", "gavel", "traces")
CODE = (*SHIPPED, "benchmarks", "examples", "tests")
TEXT = (*CODE, "docs", "protos", ".ci")
TEXT_SUFFIXES = {".py", ".md", ".cfg", ".toml", ".txt", ".yaml", ".yml", ".json", ".proto", ".sh", ""}

FILE_LINES = 400
FUNCTION_LINES = 60

# where policies may measure how long something takes: `solve_s`, and the time limit of a solver
STOP_WATCHES = ("policies/registry.py", "policies/engine/solvers.py")

# (rule, where the finding says it is): why it is right there
EXCEPTIONS: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Source:
    """One file: its path from the project root and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree; empty for what is not Python."""
        return ast.parse(self.text if self.path.endswith(".py") else "")

    def is_in(self, *folders: str) -> bool:
        """Whether the file lies in one of these top-level folders."""
        return self.path.split("/")[0] in folders


@dataclass(frozen=True)
class Finding:
    """A place (`path`, or `path::name` where a name stays and a line number does not) and the fault there."""

    where: str
    fault: str


Rule = Callable[[Source], Iterator[Finding]]
RULES: dict[str, Rule] = {}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def rule(check: Rule) -> Rule:
    """Register a rule under its name; its docstring is the lesson shown when it is broken."""
    RULES[check.__name__] = check
    return check


# ------------------------------------------------------------------------------------------- size and names


@rule
def short_files(source: Source) -> Iterator[Finding]:
    """A file is a room: beyond some 400 lines it holds two subjects. Split it where the subjects part."""
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
    """`utils`, `helpers`, `manager`, `common` name no subject, so all ends up there. Say what it is about."""
    empty = {"util", "utils", "helper", "helpers", "manager", "managers", "common"}
    if source.is_in(*CODE):
        for part in Path(source.path).with_suffix("").parts:
            if empty & set(part.lower().split("_")):
                yield Finding(source.path, f"'{part}' does not say what it holds")


UNITS_FIRST = re.compile(
    r"(?!.*_per_)"  # a rate, such as ms_per_step, reads in its own order
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
    """A test's docstring is the promise it keeps, in words: what the reader of a red run has to go by."""
    if source.is_in("tests"):
        for function in functions(source.tree):
            if function.name.startswith("test_") and ast.get_docstring(function) is None:
                yield Finding(f"{source.path}::{function.name}", "no docstring")


@rule
def no_machine_paths(source: Source) -> Iterator[Finding]:
    """A path of one machine works on one machine. Take it from the project root, an argument, `tmp_path`."""
    for found in re.finditer(r"(?<![\w.}/-])/(work|home|root|Users|tmp)/\w[^\s'\"`)]*", source.text):
        line = source.text.count("\n", 0, found.start()) + 1
        yield Finding(source.path, f"line {line}: '{found.group()}'")


# ---------------------------------------------------------------------------------------- policies are pure


@rule
def policies_do_not_print(source: Source) -> Iterator[Finding]:
    """A policy is a pure function. What people should learn of an answer goes into `Allocation.notes`."""
    if source.is_in("policies"):
        for call in calls(source.tree):
            if dotted(call.func) == "print":
                yield Finding(source.path, f"line {call.lineno}: print(…)")


@rule
def policies_see_no_clock(source: Source) -> Iterator[Finding]:
    """The time is `Problem.now_s`, or replays differ. Who may measure durations: STOP_WATCHES."""
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
    """Unpickling runs whatever the file says, and only our own version reads it. Write a format down."""
    for line, name in names_imported(source.tree):
        if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}:
            yield Finding(source.path, f"line {line}: imports {name}")


# ------------------------------------------------------------------------------------------- reading Python


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def dotted(node: ast.AST) -> str:
    """`a.b.c` as written; empty for anything but names and attributes of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def names_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, at any depth; relative imports are our own and left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def docstring_lines(function: Function) -> int:
    """How many lines the function's docstring takes."""
    if ast.get_docstring(function) is None:
        return 0
    first = function.body[0]
    return first.end_lineno - first.lineno + 1


def sources() -> list[Source]:
    """Every text file of ours."""
    paths = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    for folder in TEXT:
        paths += (ROOT / folder).rglob("*")
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(paths)
        if path.is_file()
        and path.suffix in TEXT_SUFFIXES
        and "__pycache__" not in path.parts
        and not re.search(r"_pb2(_grpc)?\.py$", path.name)
    ]


# ------------------------------------------------------------------------------------------------ the tests


@pytest.fixture(scope="module")
def findings() -> dict[str, list[Finding]]:
    """What every rule finds in the whole project."""
    everything = sources()
    return {
        name: [found for source in everything for found in check(source)] for name, check in RULES.items()
    }


@pytest.mark.parametrize("name", RULES)
def test_the_project_is_tidy(name: str, findings: dict[str, list[Finding]]) -> None:
    """Every rule holds everywhere, but for the exceptions that give a reason."""
    broken = [found for found in findings[name] if (name, found.where) not in EXCEPTIONS]
    places = "\n".join(f"  {found.where}: {found.fault}" for found in broken)
    assert not broken, (
        f"{RULES[name].__doc__}\n{places}\n"
        f"(rule '{name}'; where breaking it is right, a line in EXCEPTIONS of tests/test_tidy.py says why)"
    )


def test_no_exception_is_stale(findings: dict[str, list[Finding]]) -> None:
    """An exception goes when what it excused is gone, and each one has a reason."""
    needed = {(name, found.where) for name, listed in findings.items() for found in listed}
    assert set(EXCEPTIONS) - needed == set(), "no longer needed: delete these lines from EXCEPTIONS"
    assert [key for key, reason in EXCEPTIONS.items() if not reason.strip()] == []


def test_the_project_is_seen() -> None:
    """The rules read real files, this one among them: a mistyped folder must not make every rule pass."""
    paths = {source.path for source in sources()}
    assert {"tests/test_tidy.py", "setup.cfg", "Makefile", ".ci/run"} <= paths


LONG_BODY = "    x = 1\n" * FUNCTION_LINES

# rule, path, a file that breaks it, a near miss that does not
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
def test_file_names_have_to_speak(path: str, faults: int) -> None:
    """Names that hold anything are found in files and folders, and only as whole words."""
    assert len(list(RULES["speaking_file_names"](Source(path, "")))) == faults


def test_every_rule_is_tried() -> None:
    """No rule without a bad sample: a check that cannot fail checks nothing."""
    assert {sample[0] for sample in SAMPLES} | {"speaking_file_names"} == set(RULES)
