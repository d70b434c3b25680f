"""What docs/policies.md says is true: its examples print what it prints, its sums add up, nothing is missing."""

import ast
import doctest
import operator
import re
from pathlib import Path
from typing import Any

import pytest

from docs import plots
from policies.registry import entry, names
from policies.transforms import Blind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e-?\d+)?")
SUMS = re.findall(r"`([\d.·/+() −-]*[·/+−][\d.·/+() −-]*) = ([\d.]+)`", PAGE)
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Closely(doctest.OutputChecker):
    """The same words, and numbers equal to one unit of the last digit printed: solvers differ in the noise."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if NUMBER.sub("#", want).split() != NUMBER.sub("#", got).split():
            return False
        pairs = zip(NUMBER.findall(want), NUMBER.findall(got), strict=True)
        return all(abs(float(w) - float(g)) <= 1.001 * unit(w) for w, g in pairs)


def unit(number: str) -> float:
    """One in the last digit of a number as printed; of a whole number nothing, for these are exact."""
    whole, point, decimals = number.partition(".")
    return 10.0 ** -len(decimals) if point else 1e-9 * max(1.0, abs(float(whole)))


def evaluated(text: str) -> float:
    """A sum of the page, as a number."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        assert isinstance(node, ast.Constant), text
        return float(node.value)

    return value(ast.parse(text.replace("·", "*").replace("−", "-").strip(), mode="eval").body)


def test_the_examples_print_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example, from the first to the last, as a reader would type them."""
    monkeypatch.chdir(ROOT)
    page = doctest.DocTestParser().get_doctest(PAGE, {}, "docs/policies.md", "docs/policies.md", 0)
    assert len(page.examples) > 40
    said: list[str] = []
    doctest.DocTestRunner(checker=Closely()).run(page, out=said.append)
    assert "".join(said) == ""


def test_a_wrong_example_would_be_seen() -> None:
    """A figure off by more than its last digit, another name or a missing line is no match."""
    check = Closely().check_output
    assert check("gpt  0.33 nan\n", "gpt 0.34 nan\n", 0)
    assert check("value 0.600\n", "value 0.601\n", 0)
    assert not check("value 0.600\n", "value 0.602\n", 0)
    assert not check("value 13\n", "value 14\n", 0)
    assert not check("gpt 0.33\n", "gpt nan\n", 0)
    assert not check("gpt 0.33\n", "rl 0.33\n", 0)
    assert not check("gpt 0.33\n", "", 0)


@pytest.mark.parametrize(
    ("text", "result"), SUMS, ids=[f"{text.strip()} = {result}" for text, result in SUMS]
)
def test_the_sums_add_up(text: str, result: str) -> None:
    """Sums in the text, in `code`, to the last digit that is written (their terms are rounded, too)."""
    assert evaluated(text) == pytest.approx(
        float(result), abs=max(1.001 * unit(result), 2e-4 * float(result))
    )


def test_there_are_sums() -> None:
    """The page is checked by hand in more than a few places, so the pattern above finds them."""
    assert len(SUMS) > 50


@pytest.mark.parametrize("name", names())
def test_every_policy_has_a_section(name: str) -> None:
    """Name and aliases in the heading; a formula, an example, a plot, what value and price are; its parameters."""
    policy = entry(name)
    aliases = f" ({', '.join(policy.aliases)})" if policy.aliases else ""
    heading = f"\n### {name}{aliases}\n"
    assert heading in PAGE
    section = re.split(r"\n##", PAGE.partition(heading)[2])[0]
    assert section.startswith("\n    "), "a section opens with the formula"
    assert "\n>>> " in section
    assert f"](images/{plots.PREFIX}{name}.svg)" in section
    assert "*Value*" in section
    assert re.search(r"\*price\*|\*Price\*", section)
    assert (
        "*By hand.*" in section or name == "strategy_proof"
    )  # a Π of ratios of optima is no sum for a margin
    for parameter in policy.parameters:
        assert f"`{parameter}" in section or f"{parameter}=" in section


def test_the_modifiers_are_there() -> None:
    """Both modifiers, and the default reference of `blind` as the page tells it."""
    for modifier in ("+packing", "+blind"):
        assert f"**{modifier}**" in PAGE
    assert "reference=" in PAGE
    assert "by default" in (Blind.of.__doc__ or "")


def test_links_lead_somewhere() -> None:
    """Files, and headings of this page as GitHub names them."""
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in headings
        elif ":" not in target:
            assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize("name", plots.PLOTS)
def test_plots_are_ours_and_there(name: str, tmp_path: Path) -> None:
    """Each plot is in the page and in the project, and drawing it twice gives the same file."""
    assert f"](images/{plots.PREFIX}{name}.svg)" in PAGE
    drawn = []
    for copy in ("a.svg", "b.svg"):
        plots.write(name, tmp_path / copy)
        drawn.append((tmp_path / copy).read_text(encoding="utf-8"))
    assert drawn[0] == drawn[1]
    kept = (plots.IMAGES / f"{plots.PREFIX}{name}.svg").read_text(encoding="utf-8")
    now, before = (" ".join(re.findall(r">([^<>\s][^<>]*)</text>", text)) for text in (drawn[0], kept))
    assert Closely().check_output(before, now, 0), "an answer has changed: make docs-plots"


def test_plots_stay_small() -> None:
    """All of them together are a quick download, and none is left over from a plot that is gone."""
    kept = list(plots.IMAGES.glob(f"{plots.PREFIX}*"))
    assert {path.name for path in kept} == {f"{plots.PREFIX}{name}.svg" for name in plots.PLOTS}
    assert sum(path.stat().st_size for path in plots.IMAGES.iterdir()) < 600_000
