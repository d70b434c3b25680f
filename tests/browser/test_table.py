"""A table of 10,000 rows: which of them exist, what scrolling writes into them, and who has the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import needs_chromium
from tests.browser.conftest import Ask

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = needs_chromium


@pytest.fixture
def page(blank: Page) -> Page:
    """A page without a scheduler."""
    return blank


@pytest.mark.parametrize(
    ("top", "count", "first", "last"),
    [
        (0, 10_000, 0, 31),
        (32 * 5000, 10_000, 4990, 5021),
        # Scrolled beyond the end, because rows have left.
        (32 * 9000, 100, 80, 100),
        (0, 3, 0, 3),
        (0, 0, 0, 0),
    ],
)
def test_the_window_has_the_rows_in_view_and_a_few_beside(
    ask: Ask, top: int, count: int, first: int, last: int
) -> None:
    """It never has rows that do not exist, wherever the view is scrolled."""
    assert ask("table", "windowOf", top, 320, 32, count, 10) == {"first": first, "last": last}


def test_a_table_of_10_000_rows_has_as_many_nodes_as_one_of_100(page: Page) -> None:
    """Only the rows in view exist, at the beginning and after a jump into the middle; rows keep their places."""
    script = """async (count) => {
        const { WindowedTable } = await import("/assets/table.js");
        const columns = [{ head: "Id", cell: (row) => row.id }, { head: "Name", cell: (row) => row.name }];
        const table = new WindowedTable("Jobs", columns, { key: (row) => row.id });
        document.body.append(table.node);
        table.show(Array.from({ length: count }, (_, at) => ({ id: String(at), name: `job ${at}` })));
        const size = () => document.querySelectorAll(".scroller *").length;
        const before = size();
        table.node.scrollTop = table.node.scrollHeight / 2;
        table.paint();
        table.order();
        const shown = [...table.body.rows].map((row) => Number(row.cells[0].textContent));
        const answer = { before, after: size(), height: table.body.offsetHeight, shown };
        table.node.remove();
        return answer;
    }"""
    few, many = page.evaluate(script, 100), page.evaluate(script, 10_000)
    assert many["before"] <= few["before"] + 8
    assert many["after"] <= few["after"] + 8
    assert many["height"] >= 10_000 * 32
    assert many["shown"] == list(range(many["shown"][0], many["shown"][-1] + 1))
    assert many["shown"][0] < 5000 < many["shown"][-1]


def test_rows_of_a_scrolled_table_are_those_of_before_with_other_words(page: Page) -> None:
    """No element is made while the view moves, each row is at its place, and nothing of another job is left."""
    script = """async () => {
        const { WindowedTable } = await import("/assets/table.js");
        const { h } = await import("/assets/dom.js");
        const columns = [
            { head: "Id", cell: (row) => h("a", { href: `/jobs/${row.id}` }, row.id) },
            { head: "Why", cell: (row) => (row.id % 2 ? "" : [h("button", null, "?"), `why ${row.id}`]) },
            { head: "Name", cell: (row) => (row.id % 3 ? `job ${row.id}` : "") },
        ];
        const table = new WindowedTable("Jobs", columns, { key: (row) => row.id });
        document.body.append(table.node);
        table.show(Array.from({ length: 1000 }, (_, at) => ({ id: String(at) })));
        table.node.scrollTop = 3200;
        table.paint();
        const elements = new Set(table.body.rows);
        for (let top = 3200; top < 6400; top += 177) {
            table.node.scrollTop = top;
            table.paint();
        }
        table.order();
        const rows = [...table.body.rows];
        const answer = {
            made: rows.filter((row) => !elements.has(row)).length,
            texts: rows.map((row) => [...row.cells].map((cell) => cell.textContent)),
            tops: rows.map((row) => parseFloat(row.style.top)),
            indexes: rows.map((row) => Number(row.ariaRowIndex ?? row.getAttribute("aria-rowindex"))),
        };
        table.node.remove();
        return answer;
    }"""
    answer = page.evaluate(script)
    ids = [int(texts[0]) for texts in answer["texts"]]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert answer["texts"] == [
        [str(id_), "" if id_ % 2 else f"?why {id_}", f"job {id_}" if id_ % 3 else ""] for id_ in ids
    ]
    assert answer["tops"] == [32 * id_ for id_ in ids]
    assert answer["indexes"] == [id_ + 2 for id_ in ids]
    assert answer["made"] == 0


def test_the_focus_stays_with_its_job_and_leaves_with_it(page: Page) -> None:
    """New rows above a row with the focus do not take it; scrolled away, no other job has it in its place."""
    script = """async () => {
        const { WindowedTable } = await import("/assets/table.js");
        const { h } = await import("/assets/dom.js");
        const columns = [{ head: "Id", cell: (row) => h("a", { href: `/jobs/${row.id}` }, row.id) }];
        const table = new WindowedTable("Jobs", columns, { key: (row) => row.id });
        document.body.append(table.node);
        const rows = Array.from({ length: 1000 }, (_, at) => ({ id: String(at) }));
        table.show(rows);
        table.body.rows[5].querySelector("a").focus();
        table.show([{ id: "new" }, ...rows.slice(3)]);
        const stays = document.activeElement.textContent;
        const order = [...table.body.rows].slice(0, 4).map((row) => row.textContent);
        table.node.scrollTop = 16000;
        table.paint();
        const leaves = document.activeElement === table.node;
        table.node.remove();
        return { stays, order, leaves };
    }"""
    assert page.evaluate(script) == {"stays": "5", "order": ["new", "3", "4", "5"], "leaves": True}
