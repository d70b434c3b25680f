"""The wording of messages is kept in `tests/golden/wording`, so that a better sentence is one difference to review.

A test asserts codes, fields and numbers by itself, and hands the sentence to the fixture:

    assert result.exit_code == 2
    wording(result.stderr, folder=tmp_path)

The text is compared with the section of this test in the file of its module. What differs from run to run is
replaced by its name (`<folder>`): a value, or a pattern if the value is unknown. After an intended change:

    python -m tests.golden.rewrite --wording [tests/cli/test_help.py …]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "golden" / "wording"
WRITE = "--write-wording"
HEADING = "## "
REMEDY = "python -m tests.golden.rewrite --wording"

Sections = dict[str, list[str]]
"""The texts of each test, in the order in which it hands them over."""


@dataclass
class Wording:
    """Compares the texts that one test hands over with those of its section, or collects them to be written."""

    test: str
    expected: Sequence[str] = ()
    collect: bool = False
    texts: list[str] = field(default_factory=list)

    def __call__(self, text: object, **varying: object) -> None:
        """Compare the next text of this test, after replacing every value or pattern of `varying` by its name."""
        words = plain(str(text), varying)
        at = len(self.texts)
        self.texts.append(words)
        if not self.collect:
            assert at < len(self.expected), f"{self.test} has no such text yet: {REMEDY}\n{words}"
            assert words == self.expected[at], f"the wording has changed. If that is meant: {REMEDY}"

    def close(self) -> None:
        """Check that the test has handed over every text of its section."""
        unused = list(self.expected[len(self.texts) :])
        assert self.collect or not unused, f"{self.test} no longer hands over these texts: {REMEDY}\n{unused}"


def plain(text: str, varying: Mapping[str, object]) -> str:
    """Return the text in the form of the file: names in place of values that vary, no blanks at the ends of lines."""
    for name, value in varying.items():
        pattern = value.pattern if isinstance(value, re.Pattern) else re.escape(str(value))
        text = re.sub(pattern, f"<{name}>", text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def read(path: Path) -> Sections:
    """Return the sections of a file; none if it does not exist."""
    sections: Sections = {}
    if path.exists():
        for block in ("\n" + path.read_text(encoding="utf-8")).split("\n" + HEADING)[1:]:
            test, _, text = block.partition("\n")
            sections.setdefault(test, []).append(text.strip("\n"))
    return sections


def written(sections: Sections) -> str:
    """Return the text of a file with these sections."""
    return "\n".join(f"{HEADING}{test}\n{text}\n" for test, texts in sections.items() for text in texts)


def in_order(sections: Sections, module: str) -> Sections:
    """Return the sections of tests that the source of a module defines, in its order."""
    defined = re.findall(r"^\s*(?:async )?def (test_\w+)", module, flags=re.MULTILINE)
    kept = [test for test in sections if function_of(test) in defined]
    return {test: sections[test] for test in sorted(kept, key=lambda test: defined.index(function_of(test)))}


def merged(old: Sections, collected: Sections) -> Sections:
    """Return the old sections with those of every function that ran replaced, so that removed cases go."""
    ran = {function_of(test) for test in collected}
    return {test: texts for test, texts in old.items() if function_of(test) not in ran} | collected


def function_of(test: str) -> str:
    """Return the name of the function that a section belongs to."""
    return test.partition("[")[0]


def file_of(module: Path) -> Path:
    """Return the file with the wording of a test module."""
    return FOLDER / module.relative_to(TESTS).with_suffix(".txt")


_COLLECTED = pytest.StashKey[dict[Path, Sections]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        WRITE, action="store_true", help="write tests/golden/wording anew instead of comparing with it"
    )


@pytest.fixture
def wording(request: pytest.FixtureRequest) -> Iterator[Wording]:
    """Compare messages with the section of this test in tests/golden/wording."""
    collect = request.config.getoption(WRITE)
    test = Wording(request.node.name, read(file_of(request.path)).get(request.node.name, []), collect)
    yield test
    test.close()
    if collect:
        collected = request.config.stash.setdefault(_COLLECTED, {})
        collected.setdefault(request.path, {})[test.test] = test.texts


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was collected. Tests that did not run keep their sections."""
    for module, sections in session.config.stash.get(_COLLECTED, {}).items():
        path = file_of(module)
        kept = in_order(merged(read(path), sections), module.read_text(encoding="utf-8"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(kept), encoding="utf-8")
