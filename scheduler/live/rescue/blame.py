"""The search for the jobs or nodes that make the scheduler raise: the fewest without which it does not.

The attempt that raises is repeated on copies of the state in which some jobs are held and some nodes drained. The
newest jobs and nodes are suspected first. If several answers are possible, the shortest is taken.

Two kinds of witnesses are added to every copy: an ordinary job, and an ordinary node of each worker type. If the
attempt raises with the witnesses alone, no job and no node is to blame. A job that raises on every node also raises on
a witness, so the job is held and no node is drained because of it; the same holds for nodes.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.effects import Solve
from scheduler.core.facts import Fact, JobSubmitted, LeaseClosed, NodeJoined, RanksExited
from scheduler.core.messages import Woke
from scheduler.core.outcome import Outcome
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.journal.replay import no_garbage_collection
from scheduler.model.cluster import UP, NodeSpec
from scheduler.model.jobs import Job, JobSpec, JobState
from scheduler.solving import answer

T = TypeVar("T")
Attempt = Callable[[Core], object]
# How long the search may take; it then ends with the answer that it has.
PATIENCE_S = 20.0
# Among up to so many jobs of one kind, single jobs are searched for; of more, all are taken.
NARROWED_MAX = 16
# How long the policy may take for a round that is planned as a test.
SOLVE_S = 10.0


class Blame(NamedTuple):
    """The jobs and nodes to put out so that an attempt does not raise; empty if that does not help."""

    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs or self.nodes)

    def __str__(self) -> str:
        parts = [("job", self.jobs), ("node", self.nodes)]
        return " and ".join(
            f"{word}{'s' * (len(names) > 1)} {_listed(names)}" for word, names in parts if names
        )


def blame(snapshot: bytes, attempt: Attempt, held_before: int = 0, drained_before: int = 0) -> Blame:
    """Find the fewest jobs or nodes of this state without which the attempt does not raise.

    `held_before` and `drained_before` count what was put out earlier: if one job after another raises on a node, the
    node is to blame, not the jobs.
    """
    state = SchedulerState.restore(snapshot)
    jobs = [name for name, job in state.active.items() if job.state is not JobState.HELD][::-1]
    newest = sorted(
        (node for node in state.nodes.values() if node.state is UP), key=lambda node: -node.since_s
    )
    nodes = [node.spec.name for node in newest]
    give_up_s = time.monotonic() + PATIENCE_S

    def error_without(jobs: Sequence[str], nodes: Sequence[str]) -> Exception | None:
        with no_garbage_collection():
            core = Core(SchedulerState.restore(snapshot))
        try:
            _add_witnesses(core.state)
            core.put_out(core.state.now_s, jobs, nodes, "")
            attempt(core)
        except Exception as error:
            return error
        return None

    def fine(jobs: Sequence[str], nodes: Sequence[str]) -> bool:
        return error_without(jobs, nodes) is None

    def in_time() -> bool:
        return time.monotonic() < give_up_s

    error = error_without((), ())
    if error is None:
        return Blame()
    answers: list[Blame] = []
    # All jobs come last, and are tried if the traceback gives no answer.
    for suspects in (*_in_the_traceback(error, state, jobs), jobs):
        if suspects and fine(suspects, ()):
            guilty = _flat(fewest(_alike(state, suspects), lambda some: fine(_flat(some), ()), in_time))
            if len(guilty) <= NARROWED_MAX:
                guilty = fewest(guilty, lambda some: fine(some, ()), in_time)
            answers.append(Blame(tuple(guilty)))
            break
    if fine((), nodes):
        answers.append(Blame((), tuple(fewest(nodes, lambda some: fine((), some), in_time))))
    if not answers and fine(jobs, nodes):
        some_jobs = fewest(jobs, lambda some: fine(some, nodes), in_time)
        answers.append(
            Blame(tuple(some_jobs), tuple(fewest(nodes, lambda some: fine(some_jobs, some), in_time)))
        )
    before = (held_before, drained_before)
    return min(answers, key=lambda blamed: _cost(blamed, before), default=Blame())


def _in_the_traceback(error: Exception, state: SchedulerState, jobs: Sequence[str]) -> Iterator[list[str]]:
    """Yield the jobs in local variables of the frames that raised: first these alone, then all of the same kinds."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = [value for frame in frames for value in frame.f_locals.values()]
    named = {value.id for value in values if isinstance(value, Job)}
    yield [name for name in jobs if name in named]
    specs = [value for value in values if isinstance(value, JobSpec)]
    specs += [state.jobs[name].spec for name in named & state.jobs.keys()]
    kinds = Kinds()
    keys = {
        kinds.of(Job(id=f"spec-{at}", spec=spec, submitted_s=0.0, order=0)) for at, spec in enumerate(specs)
    }
    yield [name for name in jobs if kinds.of(state.jobs[name]) in keys]


def plan_a_round(core: Core, now_s: float) -> None:
    """Take over, ask for an allocation, answer it in this process and plan; raise the errors a daemon would."""
    questions = _questions(core.take_over(now_s)) + _questions(core.handle(now_s, Woke(what="tick")))
    for question in questions[-1:]:
        core.handle(now_s, answer(question, SOLVE_S))
    core.handle(now_s, Woke(what="plan"))
    core.handle(now_s, Woke(what="fill"))


def next_round_s(state: SchedulerState, now_s: float) -> float:
    """Return a time, `now_s` or later, at which `plan_a_round` asks for a new allocation."""
    again_s = state.asked.at_s + max(state.settings.min_reallocation_s, 0.0)
    return max(now_s, state.now_s, state.round.ends_s, again_s) + 1.0


def _questions(outcome: Outcome) -> list[Solve]:
    return [effect for effect in outcome.effects if isinstance(effect, Solve)]


def _add_witnesses(state: SchedulerState) -> None:
    for worker_type in sorted({node.spec.worker_type for node in state.nodes.values()}):
        name = f"witness-{worker_type}"
        spec = NodeSpec(
            name=name, worker_type=worker_type, gpus=1, cpus=8.0, memory_gb=64.0, gpu_memory_gb=16.0
        )
        apply(state, state.now_s, NodeJoined(spec=spec))
    ordinary = JobSpec(name="witness", cpus=1.0, memory_gb=1.0, gpu_memory_gb=1.0)
    apply(state, state.now_s, JobSubmitted(job=str(state.next_job), spec=ordinary))


def named_in(state: SchedulerState, facts: Iterable[Fact]) -> Blame:
    """Return the jobs of this state that these facts name, or else the nodes."""
    jobs, nodes = dict[str, None](), dict[str, None]()
    for fact in facts:
        leases = [getattr(fact, "lease", ""), *getattr(fact, "leases", ())]
        leases += [progress.lease for progress in getattr(fact, "progress", ())]
        leases += [fact.exit.lease] if isinstance(fact, LeaseClosed | RanksExited) else []
        named = [
            getattr(fact, "job", ""),
            *[state.leases[lease].lease.job for lease in leases if lease in state.leases],
        ]
        jobs |= dict.fromkeys(name for name in named if name in state.active)
        node = fact.spec.name if isinstance(fact, NodeJoined) else getattr(fact, "node", "")
        nodes |= dict.fromkeys([node] if node in state.nodes else ())
    return Blame(tuple(jobs), () if jobs else tuple(nodes))


def fewest(
    suspects: Sequence[T], fine_without: Callable[[Sequence[T]], bool], in_time: Callable[[], bool]
) -> list[T]:
    """Return suspects without which all is fine, none of which can be left out.

    All is fine without all of the suspects. Each guilty suspect is found by halving, from the first suspects on. When
    time is up, the answer is one that suffices, and may be longer than necessary.
    """
    guilty: list[T] = []
    while not fine_without(guilty):
        low, high = 0, len(suspects)
        while high - low > 1 and in_time():
            middle = (low + high) // 2
            if fine_without([*guilty, *suspects[:middle]]):
                high = middle
            else:
                low = middle
        if not in_time() or high == 0:
            return [*guilty, *suspects[:high]]
        guilty.append(suspects[high - 1])
        suspects = suspects[: high - 1]
    return guilty


def _alike(state: SchedulerState, jobs: Sequence[str]) -> list[list[str]]:
    """Group the jobs that planning treats as equal: a user who submits one often submits hundreds."""
    kinds, groups = Kinds(), dict[int, list[str]]()
    for name in jobs:
        groups.setdefault(kinds.of(state.jobs[name]), []).append(name)
    return list(groups.values())


def _flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [name for group in groups for name in group]


def _cost(answer: Blame, before: tuple[int, int]) -> int:
    jobs, nodes = len(answer.jobs), len(answer.nodes)
    return jobs + nodes + (before[0] if jobs else 0) + (before[1] if nodes else 0)


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"
