"""docs/policies.md is true: its examples print what it shows, its sums add up, and no policy is missing."""

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
    """Compares words exactly, and numbers to one unit of the last printed digit, because solvers differ slightly."""

    def check_output(self, want: str, actual: str, optionflags: int) -> bool:
        if NUMBER.sub("#", want).split() != NUMBER.sub("#", actual).split():
            return False
        pairs = zip(NUMBER.findall(want), NUMBER.findall(actual), strict=True)
        return all(abs(float(w) - float(g)) <= 1.001 * unit(w) for w, g in pairs)


def unit(number: str) -> float:
    """Return one unit of the last digit of a printed number; whole numbers are exact."""
    whole, point, decimals = number.partition(".")
    return 10.0 ** -len(decimals) if point else 1e-9 * max(1.0, abs(float(whole)))


def evaluated(text: str) -> float:
    """Return the value of a sum on the page."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        assert isinstance(node, ast.Constant), text
        return float(node.value)

    return value(ast.parse(text.replace("·", "*").replace("−", "-").strip(), mode="eval").body)


def test_the_examples_print_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example runs in order, as a reader would type them."""
    monkeypatch.chdir(ROOT)
    page = doctest.DocTestParser().get_doctest(PAGE, {}, "docs/policies.md", "docs/policies.md", 0)
    assert len(page.examples) > 40
    differences: list[str] = []
    doctest.DocTestRunner(checker=Closely()).run(page, out=differences.append)
    assert "".join(differences) == ""


def test_a_wrong_example_would_be_noticed() -> None:
    """A figure that differs in more than its last digit, another name or a missing line fails the comparison."""
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
    """Sums in `code` are right to the last digit that is written (their terms are rounded, too)."""
    assert evaluated(text) == pytest.approx(
        float(result), abs=max(1.001 * unit(result), 2e-4 * float(result))
    )


def test_there_are_sums() -> None:
    """The page has more than a few sums, so the pattern above matches them."""
    assert len(SUMS) > 50


@pytest.mark.parametrize("name", names())
def test_every_policy_has_a_section(name: str) -> None:
    """A section has name and aliases, a formula, an example, a plot, the meaning of value and price, and parameters."""
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
    # The product of ratios of optima is too long to work out by hand.
    assert "*By hand.*" in section or name == "strategy_proof"
    for parameter in policy.parameters:
        assert f"`{parameter}" in section or f"{parameter}=" in section


def test_both_modifiers_are_described() -> None:
    """The page has both modifiers, and the default reference of `blind`."""
    for modifier in ("+packing", "+blind"):
        assert f"**{modifier}**" in PAGE
    assert "reference=" in PAGE
    assert "by default" in (Blind.of.__doc__ or "")


def test_links_lead_somewhere() -> None:
    """Links lead to existing files, and to headings of this page as GitHub names them."""
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
    """Each plot is on the page and in the project, and drawing it twice gives the same file."""
    assert f"](images/{plots.PREFIX}{name}.svg)" in PAGE
    drawn = []
    for copy in ("a.svg", "b.svg"):
        plots.write(name, tmp_path / copy)
        drawn.append((tmp_path / copy).read_text(encoding="utf-8"))
    assert drawn[0] == drawn[1]
    kept = (plots.IMAGES / f"{plots.PREFIX}{name}.svg").read_text(encoding="utf-8")
    new_text, before = (" ".join(re.findall(r">([^<>\s][^<>]*)</text>", text)) for text in (drawn[0], kept))
    assert Closely().check_output(before, new_text, 0), "an answer has changed: make docs-plots"


def test_plots_stay_small() -> None:
    """All pictures together, one of them of the web pages, are a quick download; no plot is left that was removed."""
    kept = list(plots.IMAGES.glob(f"{plots.PREFIX}*"))
    assert {path.name for path in kept} == {f"{plots.PREFIX}{name}.svg" for name in plots.PLOTS}
    assert sum(path.stat().st_size for path in plots.IMAGES.iterdir()) < 640_000
