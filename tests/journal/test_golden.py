"""Journals of older releases are read with the same meaning and all their fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.gavel.v1.plain import plain as given
from scheduler.core.invariants import check
from scheduler.journal.codec import decode_facts, encode_facts
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.live.wire.jobs import launch_to_wire
from scheduler.model.launch import Launch
from tests.journal.golden import PATH, every_fact, every_launch, plain

LINES: list[dict[str, Any]] = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
FACTS = {line["fact"]: line["payload"] for line in LINES if "fact" in line}
STORIES = {line["story"]: line for line in LINES if "story" in line}


def lost(old: Any, new: Any, at: str = "") -> list[str]:
    """List the parts of the old value that the new one lacks or has changed; additions do not count."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{at}.{key}" for key in old if key not in new]
        return gone + [line for key in old if key in new for line in lost(old[key], new[key], f"{at}.{key}")]
    if isinstance(old, list) and isinstance(new, list):
        if len(old) > len(new):
            return [f"{at} is shorter"]
        return [line for n, part in enumerate(old) for line in lost(part, new[n], f"{at}[{n}]")]
    return [] if old == new else [f"{at}: {old!r} is now {new!r}"]


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_of_an_older_release_keeps_every_field(name: str) -> None:
    """A fact that is read is written again with all its fields."""
    (fact,) = decode_facts(json.dumps([FACTS[name]]).encode())
    assert lost(FACTS[name], json.loads(encode_facts([fact]))[0]) == []


def test_every_fact_and_every_field_is_in_the_golden_journal() -> None:
    """A new fact or field is added by `python -m tests.journal.golden`; the diff must show only additions."""
    for fact in [*every_fact()]:
        assert lost(fact, FACTS.get(fact["type"])) == []
    launched = json.loads(encode_facts([every_launch()]))[0]
    assert lost(launched, FACTS["launch"]) == []


def test_a_launch_of_an_older_release_reaches_an_agent_whole() -> None:
    """All fields of the launch survive the way over the wire."""
    launch = msgspec.convert(FACTS["launch"]["spec"]["launch"], Launch)
    assert msgspec.convert(given(launch_to_wire(launch)), Launch) == launch


@pytest.mark.parametrize("name", STORIES)
def test_a_journal_of_an_older_release_adds_up_to_the_same_state(name: str, tmp_path: Path) -> None:
    """Every record applies, the invariants hold, and the state has everything that it had."""
    story = STORIES[name]
    with SqliteJournal(tmp_path / "journal.db", durable=False) as journal:
        for now_s, facts in story["records"]:
            journal.append(now_s, decode_facts(msgspec.json.encode(facts)))
        recovered = recover_scheduler(journal)
    assert recovered.report() == []
    check(recovered.state)
    assert lost(story["state"], plain(recovered.state)) == []
