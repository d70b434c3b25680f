"""The YAML reader of job files, problem files and settings: values, lines, and hostile texts."""

from __future__ import annotations

import pytest

from protos.files.errors import BadInput, Place
from protos.files.nodes import line_of, plain
from protos.files.yaml import DEPTH_MAX, REPEATED_MAX, read_table, read_yaml


def data(text: str, *, aliases: bool = False) -> object:
    """Read a text of one document as plain data."""
    return plain(read_table(text, aliases=aliases))


def refusal(text: str, *, aliases: bool = False) -> BadInput:
    """Read a text that is refused; return the error."""
    with pytest.raises(BadInput) as caught:
        read_yaml(text, aliases=aliases)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("On", "On"),
        ("12:30", "12:30"),
        ("2030-12-31", "2030-12-31"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("012", 12),
        ("-7", -7),
        ("1e6", 1e6),
        (".5", 0.5),
        (".inf", float("inf")),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("'null'", "null"),
        ('"7"', "7"),
        ("! 7", 7),
        ("9" * 301, "9" * 301),
        ("|\n  a\n  b\n", "a\nb\n"),
    ],
)
def test_values_are_read_as_in_yaml_1_2(text: str, value: object) -> None:
    """Words that YAML 1.1 reads as booleans, times and octal numbers are plain text or decimal numbers."""
    assert data(f"key: {text}") == {"key": value}


def test_numbers_keep_their_text() -> None:
    """A version 1.10 in a job's environment does not become 1.1."""
    table = read_table("version: 1.10")
    assert table.value["version"][1].value == "1.10"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("a",), 1),
        (("b",), 2),
        (("b", 0), 3),
        (("b", 1, "c"), 4),
        (("b", 1, "d"), 5),
        (("b", 1, "missing"), 4),
        (("b", 7), 2),
        (("missing",), None),
        ((), None),
    ],
)
def test_every_value_has_its_line(place: Place, line: int | None) -> None:
    """Keys and positions lead to a value's line; a missing value has the line of its container."""
    assert line_of(read_table("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n"), place) == line


@pytest.mark.parametrize(
    ("text", "line", "place"),
    [
        ("a: 1\nb: 2\na: 3", 3, ("a",)),
        ("a:\n  b:\n  - {c: 1}\n  - {c: 1, c: 2}", 4, ("a", "b", 1, "c")),
        ("? {a: 1, a: 2}\n: 1", 1, ("", "a")),
    ],
)
def test_a_key_that_appears_twice_is_refused_with_its_place(text: str, line: int, place: Place) -> None:
    """A repeated key is refused, because one of its values would be lost."""
    error = refusal(text)
    assert (error.line, error.place) == (line, place)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: *a", 2),
        ("a: &a 1\nb: *a", 2),
        ("\na: !!python/object/apply:os.getcwd []", 2),
        ("a: !!float 3", 1),
        ("a: \n- [b\n", 3),
        ("a: \x07", 1),
        ("a: \x00", 1),
        ("\x1b[31m: 1", 1),
        ("? [a]\n: 1", 1),
        ("a:\n\tb: 1", 2),
        ("%YAML 9.9\n---\na: 1", 1),
        ("a: 1\n--- {", 3),
        ("- " * (DEPTH_MAX + 1), 1),
        ("- " * 100_000, 1),
        ('{"a":' * 100_000, 1),
        ("a: [" * 2_000, 1),
    ],
)
def test_unsupported_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    """Aliases, unless allowed, tags, control characters, broken syntax and deep nesting are refused."""
    assert refusal(text).line == line


def test_half_a_character_is_refused() -> None:
    """A lone surrogate, which a program can pass, is refused."""
    assert "Unicode" in refusal("a: \ud800").problem


def test_a_second_document_is_refused_where_one_is_expected() -> None:
    """The error has the second document's line; where several are expected all are read, except empty ones."""
    with pytest.raises(BadInput) as caught:
        read_table("a: 1\n---\nb: 2")
    assert caught.value.line == 3
    assert [plain(node) for node in read_yaml("a: 1\n---\n---\nb: 2")] == [{"a": 1}, {"b": 2}]
    assert data("") == {}


def test_aliases_and_merges_repeat_values() -> None:
    """A mapping's own keys override merged ones, and of several merged mappings the first counts."""
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b], y: 3}\nd: *a\ne: &e [*a]\nf: *e"
    assert data(text, aliases=True) == {
        "a": {"x": 1, "y": 1},
        "b": {"x": 2, "z": 2},
        "c": {"x": 1, "y": 3, "z": 2},
        "d": {"x": 1, "y": 1},
        "e": [{"x": 1, "y": 1}],
        "f": [{"x": 1, "y": 1}],
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("jobs: *unknown", 1),
        ("jobs: &a [*a]", 1),
        ("a: &a 1\n---\nb: *a", 3),
        ("a: {<<: 3}", 1),
        ("a: &a [1]\nb: {<<: *a}", 2),
        # Deeper by one with every line, without being nested in the text.
        ("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 50)), DEPTH_MAX),
    ],
)
def test_impossible_aliases_are_refused(text: str, line: int) -> None:
    """Unknown aliases, aliases inside their own anchor, and aliases that nest too deeply are refused."""
    assert refusal(text, aliases=True).line == line


def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    """A "billion laughs" text is refused by the count of repeated values, before any is repeated."""
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert f"{REPEATED_MAX:,}" in refusal(text, aliases=True).problem


def test_merges_that_pile_up_are_refused() -> None:
    """Merges that grow by one key each are refused if they repeat too many values."""
    text = "a0: &a0 {k0: 1}\n" + "".join(f"a{i}: &a{i} {{<<: *a{i - 1}, k{i}: 1}}\n" for i in range(1, 2_500))
    assert f"{REPEATED_MAX:,}" in refusal(text, aliases=True).problem
