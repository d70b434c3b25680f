"""Source files as the rules read them, findings, and the registry of rules."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("planner", "policies", "protos", "scheduler", "worker_agent", "gavel", "traces")
CODE = (*SHIPPED, "benchmarks", "examples", "tests")
TEXT = (*CODE, "docs", ".ci")
TEXT_SUFFIXES = {".py", ".md", ".cfg", ".toml", ".txt", ".yaml", ".yml", ".json", ".proto", ".sh", ""}


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
    """A fault and its place: `path`, or `path::name`, because a name stays valid if line numbers change."""

    where: str
    fault: str


Rule = Callable[[Source], Iterator[Finding]]
RULES: dict[str, Rule] = {}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def rule(check: Rule) -> Rule:
    """Register a rule under its name; its docstring is the lesson shown when it is broken."""
    RULES[check.__name__] = check
    return check


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
    """Line and full name of everything imported, at any depth, without relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def names_bound(tree: ast.AST) -> Iterator[str]:
    """Every variable (assigned, looped over, caught), parameter and function. Fields of classes are left out."""
    fields = {
        id(field.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.id
        elif isinstance(node, Function | ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def comments(source: Source) -> Iterator[tuple[int, str, bool]]:
    """Return line and text of every comment, and whether it is alone on its line."""
    if source.path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT:
                alone = not token.line[: token.start[1]].strip()
                yield token.start[0], token.string.lstrip("#").strip(), alone


def docstring_lines(function: Function) -> int:
    """How many lines the function's docstring takes."""
    if ast.get_docstring(function) is None:
        return 0
    first = function.body[0]
    return first.end_lineno - first.lineno + 1


def sources() -> list[Source]:
    """Every text file of the project."""
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
