"""Rules of style: names that name the thing, comments above their line, docstrings that are no riddles."""

import ast
import re
from collections.abc import Iterator

from .source import CODE, SHIPPED, Finding, Function, Source, comments, names_bound, rule

NAMES_THAT_SAY_NOTHING = {
    *("said", "told", "found", "made", "seen", "heard", "asked", "given", "taken", "got", "shown"),
    *("mine", "ours", "theirs", "one", "there", "who", "whose", "what"),
}


@rule
def names_say_what_it_is(source: Source) -> Iterator[Finding]:
    """`said`, `found`, `mine` say how a thing came to us. Name the thing: `config`, `rows`, `own_lease`."""
    if source.is_in(*CODE):
        for name in sorted(set(names_bound(source.tree))):
            if name.strip("_") in NAMES_THAT_SAY_NOTHING:
                yield Finding(f"{source.path}::{name}", f"'{name}' does not say what it holds")


RELATIVE = re.compile(
    r"(?:(?:about|after|at|before|between|by|for|from|in|into|of|on|over|to|until|with|without) )?"
    r"(?:that|which|who|whom|whose|whoever|what|whatever|where|wherever)\b"
)
DIRECTIVE = re.compile(r"noqa\b|type: ignore|pragma:|fmt:|mypy:|pylint:")
LABEL_WORDS = 4


@rule
def comments_stand_above(source: Source) -> Iterator[Finding]:
    """A comment is a sentence above the line it explains. Behind code stand units, shapes and short labels."""
    if source.is_in(*CODE):
        for line, text, alone in comments(source):
            label = re.sub(r"^\[[^]]*\]\s*", "", text)
            prose = len(label.split()) > LABEL_WORDS or RELATIVE.match(label)
            if prose and not alone and not DIRECTIVE.match(text):
                yield Finding(source.path, f"line {line}: '{text}' stands behind code")


@rule
def comments_have_a_subject(source: Source) -> Iterator[Finding]:
    """`# that calls may take` hangs on a name like a clause. Write `# How long calls may take once …`."""
    if source.is_in(*CODE):
        previous = -1
        for line, text, alone in comments(source):
            if alone and previous != line - 1 and RELATIVE.match(text):
                yield Finding(source.path, f"line {line}: '{text}' begins with a relative word")
            previous = line if alone else -1


RIDDLE = re.compile(
    RELATIVE.pattern
    + r"|(?:it|they|he|she)\b|the same\.|(?:by|with|of|as|so|to) |\w+\.$|(?:those|ours|theirs|mine)\b",
    re.IGNORECASE,
)


@rule
def docstrings_say_what_it_does(source: Source) -> Iterator[Finding]:
    """Riddles: "The same.", "By its id.", "It has happened." Say what it does for its caller: "Return …"."""
    if source.is_in(*SHIPPED, "benchmarks", "examples"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node) or ""
                if RIDDLE.match(text):
                    name = getattr(node, "name", "")
                    where = f"{source.path}::{name}" if name else source.path
                    yield Finding(where, f"'{text.splitlines()[0]}' leaves its reader guessing")
