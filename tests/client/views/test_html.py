"""Results as HTML: every text is escaped, both themes show it, and the code for it is loaded when it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from gavel.client.results import JobState
from gavel.client.views.html import COLOURS, tag
from tests.client.views.examples import ALLOCATION, EXPLANATION, FAILED, HOSTILE, RUNNING, WAITING, queue

SHOWN = {
    "queue": queue(WAITING, RUNNING, FAILED),
    "empty queue": queue(),
    "waiting": WAITING,
    "running": RUNNING,
    "failed": FAILED,
    "explanation": EXPLANATION,
    "allocation": ALLOCATION,
}


class Outline(HTMLParser):
    """The tags, attributes and texts of a document, which must be well-formed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Enter an element."""
        self.tags.append(tag)
        self.attributes += attributes
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave the element that was entered last."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.texts.append(data)


@pytest.mark.parametrize("name", SHOWN)
def test_documents_are_well_formed_and_inert(name: str) -> None:
    """Elements are closed in order; there are no scripts, links, sheets or handlers."""
    outline = Outline(SHOWN[name]._repr_html_())
    known = {"div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "pre", "details", "summary"}
    assert set(outline.tags) <= known
    assert {key for key, _ in outline.attributes} <= {"style", "class"}


def hostile(result: Any) -> Any:
    """Return the result with hostile names everywhere."""
    if result in (WAITING, RUNNING, FAILED):
        spec = replace(result.spec, name=HOSTILE, user=HOSTILE, env={HOSTILE: HOSTILE}, command=(HOSTILE,))
        return replace(result, spec=spec, why=HOSTILE, last_lines=HOSTILE)
    if result is EXPLANATION:
        return replace(result, reason=HOSTILE, rendered=f"first\n{HOSTILE}")
    return replace(result, policy=HOSTILE, notes=(HOSTILE,), failed=HOSTILE, price_per_gpu={HOSTILE: 1.0})


@pytest.mark.parametrize("result", [WAITING, RUNNING, FAILED, EXPLANATION, ALLOCATION])
def test_hostile_texts_are_inert(result: Any) -> None:
    """A name such as `<script>` is shown as it is, and is no element."""
    document = hostile(result)._repr_html_()
    assert "<script" not in document
    assert HOSTILE in "".join(Outline(document).texts)


def test_a_hostile_job_in_a_queue_is_inert() -> None:
    """A queue shows the names of other users' jobs; they neither run nor reverse text nor become formulas."""
    spec = replace(WAITING.spec, name='"><img src=x onerror=alert(1)>\u202e$x$')
    document = queue(replace(WAITING, spec=spec))._repr_html_()
    assert "img" not in Outline(document).tags
    assert "\u202e" not in document
    assert 'class="tex2jax_ignore mathjax_ignore"' in document
    assert tag("p", "<b>") == "<p>&lt;b&gt;</p>"


@pytest.mark.parametrize("state", JobState)
def test_states_are_readable_in_both_themes(state: JobState) -> None:
    """A state is white on a colour of its own, with a contrast of at least 4.5 to 1."""
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in (int(COLOURS[state.value][at : at + 2], 16) / 255 for at in (1, 3, 5))
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    assert 1.05 / (luminance + 0.05) >= 4.5


@pytest.mark.parametrize("name", SHOWN)
def test_all_other_text_has_the_colour_of_the_notebook(name: str) -> None:
    """No style but a state's label names a colour of text or of the background."""
    document = re.sub(
        r"background:#[0-9a-f]{6};color:#fff;border-radius[^\"]*", "", SHOWN[name]._repr_html_()
    )
    assert set(re.findall(r"(?:color|background):([^;\"]+)", document)) <= {"inherit", "none"}
    assert all("color:inherit" in style for style in re.findall(r"<table[^>]*>", document))


def test_long_queues_are_cut() -> None:
    """A queue of thousands shows the first rows, and counts the others."""
    document = queue(*[WAITING] * 100, total=5000)._repr_html_()
    assert document.count("<tr>") == 61
    assert "and 4,940 more jobs" in document


def test_html_is_loaded_when_it_is_needed() -> None:
    """The client and its results load no code for showing them."""
    program = (
        "import sys, gavel.client.client, gavel.client.results\n"
        "print([name for name in sys.modules if name.startswith('gavel.client.views')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
