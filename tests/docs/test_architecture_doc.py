"""docs/architecture.md and the pages around it agree with the code: modules, moves of jobs and leases, files."""

import ast
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from scheduler.core.apply import apply
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import TERMINAL, TRANSITIONS, JobState
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate
from tests.structure import by_folder, imports
from tests.support.journals import MemoryJournal

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
# These arrows need a cancellation right after the grant, or a node that dies before it starts a job.
RARE = {("waiting", "[*]"), ("sent", "stopping"), ("sent", "[*]")}
PAGES = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/architecture.md has no section '{heading}'"
    return section[1]


def arrows(heading: str) -> set[tuple[str, str, str]]:
    """Return (from, to, label) of each arrow in the diagram of a section."""
    drawn = re.findall(r"^ +(\S+) --> ([^\s:]+)(?:: (.*))?$", section(heading), re.MULTILINE)
    assert drawn, heading
    return set(drawn)


def test_the_map_has_a_line_for_every_room() -> None:
    """Every folder has a row with the first line of its `__init__.py`."""
    rooms = {
        f"{folder}/": ast.get_docstring(
            ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
        )
        for folder in by_folder(imports(ROOT))
    }
    rows = dict(re.findall(r"^\| `([\w/]+/)` \| (.*) \|$", section("The rooms"), re.MULTILINE))
    assert rows == {folder: (about or "").partition("\n")[0].rstrip(":") for folder, about in rooms.items()}


def test_the_life_of_a_job_is_the_table() -> None:
    """The diagram has an arrow for each row of TRANSITIONS, with the move and who makes it, and no other."""
    rows = {(state, rule.to, f"{move} ({rule.who})") for (state, move), rule in TRANSITIONS.items()}
    ends = {("[*]", JobState.QUEUED, ""), *((state, "[*]", "") for state in TERMINAL)}
    assert arrows("Life of a job") == rows | ends


def test_the_life_of_a_lease_is_what_a_run_shows(tmp_path: Path) -> None:
    """In a run of hours, with a cut link and a dead node, leases move along every arrow of the diagram and no other."""
    failures = tmp_path / "failures.csv"
    failures.write_text(
        "t_s,node,event\n6000,a100-0,cut\n6010,a100-0,mend\n9000,h100-1,crash\n12000,h100-1,repair\n"
    )
    run = Run(
        cluster={"a100": 8, "h100": 8},
        workload="mixed-day",
        rate_per_h=8.0,
        hours=4.0,
        failures_file=str(failures),
    )
    journal = MemoryJournal()
    simulate(replace(prepare(run).options, journal=journal))
    state, steps = SchedulerState(), set[tuple[str, str]]()
    for now_s, fact in journal.read():
        before = {name: str(holding.phase) for name, holding in state.leases.items()}
        apply(state, now_s, fact)
        after = {name: str(holding.phase) for name, holding in state.leases.items()}
        steps |= {(before.get(name, "[*]"), after.get(name, "[*]")) for name in before.keys() | after.keys()}
    moves = {(start, end) for start, end in steps if start != end}
    drawn = {(start, end) for start, end, _ in arrows("Life of a lease")}
    assert moves <= drawn
    assert drawn - moves <= RARE


def slug(title: str) -> str:
    """Return a heading as GitHub names it in links."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Links inside the project lead to existing files and to headings in them."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {slug(title) for title in titles}, target


def test_decisions_have_their_form() -> None:
    """An ADR opens with its own number, has its date and status, and fits on a page."""
    records = sorted((DOCS / "adr").glob("[0-9]*.md"))
    numbers = [path.name[:4] for path in records]
    assert len(numbers) == len(set(numbers)), numbers
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        assert re.match(r"# .*\n\n\w+ \d{4}, (accepted|superseded by \d+)\n", text), path.name
        headings = re.findall(r"^## .*$", text, re.MULTILINE)
        assert headings == ["## Context", "## Decision", "## Consequences"], path.name
        assert len(text.splitlines()) <= 60, "one page at most"
