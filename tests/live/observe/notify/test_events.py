"""The rules: which facts are events, and what messages say about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest

from scheduler.core import facts as f
from scheduler.core.apply import apply
from scheduler.core.messages import Shares
from scheduler.core.state import SchedulerState
from scheduler.live.observe.notify.events import Happening, Rules
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import JobSpec, JobState, Move
from scheduler.model.lease import Bundle, Lease
from tests.live.observe.test_ledger import played
from tests.support.wording import Wording

NODE = f.NodeJoined(spec=NodeSpec(name="n1", worker_type="v100", gpus=4))
LOST = f.NodeMoved(node="n1", state=NodeState.LOST, why="its leases have lapsed")
SUBMITTED = f.JobSubmitted(job="1", spec=JobSpec(name="train", user="ann", tenant="vision"))
NO_SHARES = Shares(jobs=(), worker_types=(), first=[], second=[], worker_type=[], gpus=[], share=[])


def events(*records: Sequence[f.Fact], times: Sequence[float] = ()) -> list[Happening]:
    """Return the events of these records."""
    state = SchedulerState()
    rules = Rules(state)
    happenings = list[Happening]()
    for now_s, facts in zip(times or count(1_800_000_000), records, strict=False):
        for fact in facts:
            apply(state, now_s, fact)
        happenings += rules.take(now_s, facts)
    return happenings


@pytest.mark.parametrize(
    ("event", "move"),
    [
        ("job_failed", f.JobMoved(job="1", move=Move.FAIL, why="it exited with code 3")),
        ("job_cancelled", f.JobMoved(job="1", move=Move.CANCEL, by="bob")),
        ("job_held", f.JobMoved(job="1", move=Move.HOLD, why="10 starts in a row failed")),
    ],
)
def test_the_end_of_a_job_is_an_event(event: str, move: f.JobMoved, wording: Wording) -> None:
    """Each end, and a hold, is one event that describes the job, the reason and who caused it."""
    (happening,) = events([SUBMITTED], [move])
    assert (happening.event, happening.job) == (event, "1")
    details = happening.details
    assert (details["at"], details["why"], details["by"]) == ("2027-01-15T08:00:01Z", move.why, move.by)
    job = details["job"]
    assert (job["id"], job["name"], job["user"], job["tenant"]) == ("1", "train", "ann", "vision")
    assert job["state"] == event.removeprefix("job_")
    wording(details["text"])


def test_other_moves_are_no_events() -> None:
    """A job that is released waits again, and is reported when it ends."""
    hold, release = (f.JobMoved(job="1", move=move) for move in (Move.HOLD, Move.RELEASE))
    assert [entry.event for entry in events([SUBMITTED], [hold], [release])] == ["job_held"]


@pytest.mark.parametrize(("user", "resource", "percent"), [("", "gpu_hours", 80), ("ann", "cost", 100)])
def test_a_budget_is_an_event(user: str, resource: str, percent: int, wording: Wording) -> None:
    """The event has the owner, the numbers and the time of the renewal; a spent budget says that jobs wait."""
    reached = f.BudgetReached(
        tenant="org",
        user=user,
        resource=resource,
        period="week",
        limit=500.0,
        spent=499.123456789,
        renews_s=1_800_230_400.0,
        percent=percent,
    )
    (happening,) = events([reached])
    details = happening.details
    assert (happening.event, happening.job) == ("budget", "")
    assert (details["tenant"], details["user"], details["resource"]) == ("org", user, resource)
    assert (details["period"], details["limit"], details["spent"]) == ("week", 500.0, 499.123457)
    assert (details["percent"], details["renews_at"]) == (percent, "2027-01-18T00:00:00Z")
    wording(details["text"])


def test_a_node_is_lost_unless_it_was_drained(wording: Wording) -> None:
    """A silent node is no event, a lost one is; the end of an agent on a drained node was intended."""
    silent = f.NodeMoved(node="n1", state=NodeState.SILENT)
    (happening,) = events([NODE], [silent], [LOST])
    assert (happening.event, happening.details["node"]) == ("node_lost", "n1")
    wording(happening.details["text"])
    assert events([NODE], [f.NodeMoved(node="n1", state=NodeState.DRAINING)], [LOST]) == []


def test_a_gpu_breaks_once(wording: Wording) -> None:
    """Broken GPUs are an event; that they are still broken when their node joins again is none."""
    broken, another = f.GpusBroken(node="n1", gpus=(2,)), f.GpusBroken(node="n1", gpus=(0, 3))
    happenings = events([NODE], [broken], [LOST], [NODE, broken, another])
    assert [entry.event for entry in happenings] == ["gpu_broken", "node_lost", "gpu_broken"]
    assert [entry.details.get("gpus") for entry in happenings] == [[2], None, [0, 3]]
    for entry in happenings:
        wording(entry.details["text"])


def test_a_policy_that_goes_on_failing_is_one_event(wording: Wording) -> None:
    """A policy that fails, by an error or with other shares in its place, is reported when it begins to fail."""
    failed = f.AllocationFailed(number=1, why="las: it took too long")
    replaced = f.AllocationAdopted(number=2, policy="las", shares=NO_SHARES, failed="las: division by zero")
    right = f.AllocationAdopted(number=3, policy="las", shares=NO_SHARES)
    happenings = events([failed], [replaced], [right], [replaced])
    assert [(entry.event, entry.details["at"][-3:-1]) for entry in happenings] == [
        ("policy_failed", "00"),
        ("policy_failed", "03"),
    ]
    for entry in happenings:
        wording(entry.details["text"])


def granted(*gpus: str) -> f.RoundPlanned:
    """Return a round that grants these GPUs to job 1, as lease 1."""
    bundle = Bundle(jobs=("1",), gpus=len(gpus), worker_type="v100")
    lease = Lease(id="1", job="1", attempt=1, bundle=bundle, gpus=gpus, round_number=1, epoch=1, ends_s=4e9)
    return f.RoundPlanned(number=1, starts_s=0.0, ends_s=4e9, granted=(lease,))


def test_idle_gpus_are_one_event(wording: Wording) -> None:
    """A gang is idle when all its nodes are; that it becomes idle again, after it was not, is another event."""
    second = f.NodeJoined(spec=NodeSpec(name="n2", worker_type="v100", gpus=4))
    begin = [NODE, second, SUBMITTED, granted("n1:0", "n2:0"), f.LeasesStarted(leases=("1",))]
    n1, n2 = (f.GpusIdled(node=node, lease="1", since_s=1_800_000_000.0) for node in ("n1", "n2"))
    ends, again = (
        f.GpusIdled(node="n2", lease="1"),
        f.GpusIdled(node="n2", lease="1", since_s=1_800_000_003.0),
    )
    happenings = events(begin, [n1], [n2], [ends], [again])
    assert [(entry.event, entry.job, entry.details["at"][-3:-1]) for entry in happenings] == [
        ("gpus_idle", "1", "02"),
        ("gpus_idle", "1", "04"),
    ]
    details = happenings[0].details
    assert (details["since"], details["nodes"]) == ("2027-01-15T08:00:00Z", ["n1", "n2"])
    wording(details["text"])


def test_gpus_that_were_idle_before_the_start_are_no_event() -> None:
    """A start reads on in the journal: what it finds idle there is reported once, and never again."""
    state = SchedulerState()
    idle = f.GpusIdled(node="n1", lease="1", since_s=1_800_000_000.0)
    for fact in (NODE, SUBMITTED, granted("n1:0"), f.LeasesStarted(leases=("1",)), idle):
        apply(state, 1_800_000_001.0, fact)
    rules = Rules(state)
    with rules.past():
        assert [entry.event for entry in rules.take(1_800_000_001.0, [idle])] == ["gpus_idle"]
    assert list(rules.take(1_800_000_002.0, [idle])) == []


def test_a_forgotten_job_is_still_reported() -> None:
    """If the state no longer has the job, the event has its id."""
    rules = Rules(SchedulerState())
    (happening,) = rules.take(0.0, [f.JobMoved(job="7", move=Move.FAIL, why="a")])
    assert happening.details["job"] == {"id": "7"}


@pytest.mark.parametrize("seed", range(8000, 8004))
def test_every_story_has_its_events(seed: int) -> None:
    """In stories full of failures, events equal the changes of jobs' states, counted separately; all are JSON."""
    records = played(seed)
    happenings = events(*(facts for _, facts in records), times=[now_s for now_s, _ in records])
    state, counted = SchedulerState(), Counter[str]()
    for now_s, facts in records:
        before = {job.id: job.state for job in state.jobs.values()}
        for fact in facts:
            apply(state, now_s, fact)
        changed = [
            job.state for job in state.jobs.values() if before.get(job.id, JobState.QUEUED) != job.state
        ]
        counted.update(f"job_{job_state}" for job_state in changed)
    states = ("completed", "failed", "cancelled", "held")
    assert counted["job_completed"] > 3
    assert {word: sum(entry.event == f"job_{word}" for entry in happenings) for word in states} == {
        word: counted[f"job_{word}"] for word in states
    }
    assert all(json.loads(json.dumps(entry.details))["text"] for entry in happenings)


@pytest.mark.parametrize("seed", range(9000, 9003))
def test_leases_that_were_never_sent_are_forgotten(seed: int) -> None:
    """At the end of each round, the rules know the open leases only."""
    state = SchedulerState()
    rules = Rules(state)
    for now_s, facts in played(seed):
        for fact in facts:
            apply(state, now_s, fact)
        list(rules.take(now_s, facts))
        if any(isinstance(fact, f.RoundPlanned) for fact in facts):
            assert rules._job_of.keys() == state.leases.keys()
