"""The structure of the tree, from its imports: which file and which folder imports which, and circles.

    python -m tests.structure [--tree DIR]

Prints a line for each folder of product code: the number of its files, of imports ("arrows") between them, and of their
imports of other folders. Imports inside functions count, too, because a circle through a late import is a circle.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PRODUCT = ("planner", "policies", "traces", "scheduler", "worker_agent", "gavel", "protos")
Graph = dict[str, set[str]]


def imports(tree: Path) -> Graph:
    """Return what each file of product code imports of the others, by path without suffix."""
    paths = {
        path.relative_to(tree).with_suffix("").as_posix(): path
        for top in PRODUCT
        for path in sorted((tree / top).rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    return {name: set(_imported(path, paths)) - {name} for name, path in paths.items()}


def _imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            for at in range(len(parts), 0, -1):
                place = "/".join(parts[:at])
                if place in known or f"{place}/__init__" in known:
                    yield place if place in known else f"{place}/__init__"
                    break


def by_folder(files: Graph) -> Graph:
    """Return which folder imports which; an import of a file in a parent folder counts, too."""
    folders: Graph = {}
    for name, others in files.items():
        here = folders.setdefault(_folder(name), set())
        here |= {_folder(other) for other in others} - {_folder(name)}
    return folders


def beside(folders: Graph, parent: str) -> Graph:
    """Return the imports between the folders that lie directly in `parent`; each stands for all that is below it."""

    def room(folder: str) -> str | None:
        inside = folder.removeprefix(f"{parent}/")
        return None if inside == folder else inside.partition("/")[0]

    rooms: Graph = {}
    for folder, others in folders.items():
        here = room(folder)
        if here:
            rooms.setdefault(here, set()).update(
                {target for other in others if (target := room(other))} - {here}
            )
    return rooms


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups whose members all import each other, directly or through others, smallest first."""
    reached: dict[str, set[str]] = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset({name, *(other for other in reached[name] if name in reached.get(other, ()))})
        for name in graph
        if name in reached[name]
    }
    return sorted((sorted(group) for group in groups), key=len)


def _reached(graph: Graph, start: str) -> set[str]:
    """Return what `start` imports, directly or through others."""
    reachable: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in reachable:
            reachable.add(name)
            ahead.extend(graph.get(name, ()))
    return reachable


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _table(files: Graph) -> Iterable[str]:
    folders = by_folder(files)
    yield f"{'folder':<32}{'files':>6}{'inside':>8}{'out':>6}"
    for folder in sorted(folders):
        members = [name for name in files if _folder(name) == folder]
        inside = sum(_folder(other) == folder for name in members for other in files[name])
        out = sum(_folder(other) != folder for name in members for other in files[name])
        yield f"{folder:<32}{len(members):>6}{inside:>8}{out:>6}"
    yield f"{len(files)} files in {len(folders)} folders, {sum(map(len, files.values()))} arrows"
    yield f"circles of files: {[' ↔ '.join(group) for group in circles(files)] or 'none'}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__)
    parser.add_argument(
        "--tree", type=Path, default=Path(), help="a checkout; by default the current directory"
    )
    for line in _table(imports(parser.parse_args().tree)):
        print(line)


if __name__ == "__main__":
    main()
