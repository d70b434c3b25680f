"""Secrets that a job prints do not reach its log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_agent.live_agents import LiveAgent, job, live
from worker_agent.shim.masking import Mask

TOKEN = "hf_abcDEF123"


def masked(mask: Mask, *parts: bytes) -> bytes:
    """Return everything that comes out."""
    return b"".join((*map(mask.feed, parts), mask.feed(b"")))


def test_a_value_is_hidden_wherever_it_is_cut():
    """The value may be written in two parts or byte by byte; the text around it stays."""
    text = f"token={TOKEN}, again {TOKEN}{TOKEN[:3]}\n".encode()
    whole = f"token=(secret), again (secret){TOKEN[:3]}\n".encode()
    for cut in range(len(text) + 1):
        assert masked(Mask([TOKEN]), text[:cut], text[cut:]) == whole
    assert masked(Mask([TOKEN]), *(bytes([byte]) for byte in text)) == whole


def test_only_a_possible_beginning_of_a_value_is_held_back():
    """A prompt without an end of line is shown at once."""
    mask = Mask([TOKEN])
    assert mask.feed(b"step 7 of 10 \r") == b"step 7 of 10 \r"
    assert mask.feed(b"proof: h") == b"proof: "
    assert mask.feed(b"ello") == b"hello"
    assert mask.feed(b"h") == b""
    assert mask.feed(b"") == b"h"


def test_short_values_are_not_hidden():
    """Three characters occur in every text."""
    assert masked(Mask(["abc", ""]), b"abc and nothing") == b"abc and nothing"
    assert masked(Mask(["abcd"]), b"abcd") == b"(secret)"


def test_a_key_of_several_lines_is_hidden_as_a_whole_and_by_line():
    """A key may be printed with a prefix on each line; its short lines alone reveal nothing."""
    key = "BEGIN KEY\nMIIEvQIBADANBg\nabc\n"
    assert masked(Mask([key]), b"<" + key.encode() + b">") == b"<(secret)>"
    assert masked(Mask([key]), b"| MIIEvQIBADANBg\n| abc\n") == b"| (secret)\n| abc\n"


def test_of_two_values_with_the_same_beginning_the_longer_is_hidden():
    """The longer value is hidden although the shorter one is complete first."""
    assert masked(Mask(["abcd", "abcdefgh"]), b"abcd", b"efgh abcd") == b"(secret) (secret)"
    assert masked(Mask(["xabc", "abcq"]), b"xabc", b"d") == b"(secret)d"


@given(
    st.lists(st.text("ab", min_size=4, max_size=6), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=8), max_size=8),
)
def test_no_value_is_ever_shown(values, parts):
    """No cut of the text reveals a value, whatever the values; a text without them is unchanged."""
    text = "".join(parts).encode()
    out = masked(Mask(values), *(part.encode() for part in parts if part))
    assert not any(value.encode() in out.replace(b"(secret)", b"\n") for value in values)
    if not any(value.encode() in text for value in values):
        assert out == text


@live
async def test_a_secret_that_a_job_prints_is_hidden(tmp_path: Path) -> None:
    """A secret written in two parts with a pause is hidden in the log and in the last lines that users see."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text(TOKEN + "\n")
    code = (
        "import os, sys, time; t = os.environ['TOKEN']; print('tok=' + t[:5], end='', flush=True); time.sleep(0.3);"
        "print(t[5:], file=sys.stderr, flush=True); sys.exit(3)"
    )
    async with LiveAgent(tmp_path) as node:
        node.desire(job(code, launch={"env_from": {"TOKEN": "secret:token"}, "setup": "echo setup $TOKEN"}))
        assert (await node.exit()).code == 3
        assert node.log() == node.agent.last_lines("17") == "setup (secret)\ntok=(secret)\n"


@pytest.mark.parametrize("length", [40, 60_000])
def test_masking_keeps_up_with_output(length: int) -> None:
    """Masking handles many megabytes per second, even with a value as long as allowed."""
    mask, data = Mask(["s" + "ecret" * (length // 5)]), b"an ordinary line of a job, no secrets\n" * 1700
    begun_s = time.process_time()
    for _ in range(20):
        mask.feed(data)
    assert time.process_time() - begun_s < 2.0
