"""The grammar of specs like `las+packing`.

spec  name[(parameter=value, ...)] [+modifier[(parameter=value, ...)]] ...
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from typing import Any

from policies.errors import UnknownPolicy


@cache
def parse(spec: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the names and parameters of a spec `a(x=1)+b`. Python's own grammar parses it; values are literals."""
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise UnknownPolicy(
            f"'{spec}' is not a policy; expected something like 'las+packing' or 'min_cost(premium=0.2)'"
        ) from None
    terms: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        terms.append(tree.right)
        tree = tree.left
    terms.append(tree)
    return tuple(_parse_term(spec, term) for term in reversed(terms))


def _parse_term(spec: str, term: ast.expr) -> tuple[str, dict[str, Any]]:
    if isinstance(term, ast.Name):
        return term.id, {}
    if isinstance(term, ast.Call) and isinstance(term.func, ast.Name) and not term.args:
        parameters = {word.arg: _literal(spec, word.value) for word in term.keywords if word.arg}
        if len(parameters) == len(term.keywords):
            return term.func.id, parameters
    raise UnknownPolicy(
        f"'{spec}': cannot read '{ast.unparse(term)}'; expected name or name(parameter=value)"
    )


def _literal(spec: str, value: ast.expr) -> Any:
    # A word needs no quotes: reference=v100, raw=true.
    if isinstance(value, ast.Name):
        return {"true": True, "false": False, "none": None}.get(value.id.lower(), value.id)
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise UnknownPolicy(f"'{spec}': '{ast.unparse(value)}' is not a plain value") from None
