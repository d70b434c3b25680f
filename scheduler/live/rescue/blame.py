"""The search for the fewest jobs or nodes that make the scheduler raise.

The call of the core that raises an error (the attempt) is repeated on copies of the state in which some jobs are held
and some nodes drained. The newest jobs and nodes are suspected first. If several answers are possible, the one with the
fewest jobs and nodes is taken.

Every copy also gets witnesses: an ordinary job, and an ordinary node of each worker type. If the attempt raises with
the witnesses alone, no job and no node is to blame. A job that causes the error on every node also causes it on a
witness node. Draining all other nodes does not help then, so the search blames the job. In the same way, a node that
causes the error with every job is blamed, because holding all other jobs does not help.
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
# How long the search may take. After that, it returns the shortest answer so far.
PATIENCE_S = 20.0
# The search first blames whole kinds of equal jobs. If these have at most this many jobs, it goes on to single jobs.
NARROWED_MAX = 16
# How long the policy may take to solve a round that is planned as a test.
SOLVE_S = 10.0


class Blame(NamedTuple):
    """The jobs to hold and the nodes to drain so that an attempt does not raise; empty if that does not help."""

    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs or self.nodes)

    def __str__(self) -> str:
        return self._words("job", "node")

    @property
    def measures(self) -> str:
        """Return what the daemon does about these jobs and nodes: `holds job 7 and drains node n1`."""
        return self._words("holds job", "drains node")

    def _words(self, for_jobs: str, for_nodes: str) -> str:
        parts = [(for_jobs, self.jobs), (for_nodes, self.nodes)]
        return " and ".join(
            f"{words}{'s' * (len(names) > 1)} {_listed(names)}" for words, names in parts if names
        )


def blame(snapshot: bytes, attempt: Attempt, held_before: int = 0, drained_before: int = 0) -> Blame:
    """Find the fewest jobs or nodes of this state without which the attempt does not raise.

    `held_before` and `drained_before` count the jobs and nodes that were blamed earlier: if one job after another
    causes errors on a node, the node is to blame, not the jobs.
    """
    state = SchedulerState.restore(snapshot)
    jobs = [name for name, job in state.active.items() if job.state is not JobState.HELD][::-1]
    newest = sorted(
        (node for node in state.nodes.values() if node.state is UP), key=lambda node: -node.since_s
    )
    nodes = [node.spec.name for node in newest]
    give_up_s = time.monotonic() + PATIENCE_S

    def error_without(jobs: Sequence[str], nodes: Sequence[str]) -> Exception | None:
        """Return the error of the attempt with these jobs held and these nodes drained; None if it succeeds."""
        with no_garbage_collection():
            core = Core(SchedulerState.restore(snapshot))
        try:
            _add_witnesses(core.state)
            core.hold_and_drain(core.state.now_s, jobs, nodes, "")
            attempt(core)
        except Exception as error:
            return error
        return None

    def succeeds_without(jobs: Sequence[str], nodes: Sequence[str]) -> bool:
        return error_without(jobs, nodes) is None

    def in_time() -> bool:
        return time.monotonic() < give_up_s

    error = error_without((), ())
    if error is None:
        return Blame()
    answers: list[Blame] = []
    # If the traceback gives no answer, all jobs are suspects.
    for suspects in (*_suspects_in_traceback(error, state, jobs), jobs):
        if suspects and succeeds_without(suspects, ()):
            kinds = fewest(
                _by_kind(state, suspects), lambda kinds: succeeds_without(_flat(kinds), ()), in_time
            )
            guilty = _flat(kinds)
            if len(guilty) <= NARROWED_MAX:
                guilty = fewest(guilty, lambda held: succeeds_without(held, ()), in_time)
            answers.append(Blame(tuple(guilty)))
            break
    if succeeds_without((), nodes):
        answers.append(
            Blame((), tuple(fewest(nodes, lambda drained: succeeds_without((), drained), in_time)))
        )
    if not answers and succeeds_without(jobs, nodes):
        guilty = fewest(jobs, lambda held: succeeds_without(held, nodes), in_time)
        guilty_nodes = fewest(nodes, lambda drained: succeeds_without(guilty, drained), in_time)
        answers.append(Blame(tuple(guilty), tuple(guilty_nodes)))
    before = (held_before, drained_before)
    return min(answers, key=lambda answer: _cost(answer, before), default=Blame())


def _suspects_in_traceback(
    error: Exception, state: SchedulerState, jobs: Sequence[str]
) -> Iterator[list[str]]:
    """Yield the jobs in local variables of the frames that raised; then all jobs of the same kinds."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = [value for frame in frames for value in frame.f_locals.values()]
    named = {value.id for value in values if isinstance(value, Job)}
    yield [name for name in jobs if name in named]
    specs = [value for value in values if isinstance(value, JobSpec)]
    specs += [state.jobs[name].spec for name in named & state.jobs.keys()]
    kinds = Kinds()
    keys = {
        kinds.of(Job(id=f"spec-{index}", spec=spec, submitted_s=0.0, order=0))
        for index, spec in enumerate(specs)
    }
    yield [name for name in jobs if kinds.of(state.jobs[name]) in keys]


def plan_a_round(core: Core, now_s: float) -> None:
    """Take over and plan a round, with an allocation solved in this process. Errors are raised, not rescued."""
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
    """Return the jobs of this state that these facts name; if there are none, the nodes."""
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
    suspects: Sequence[T], succeeds_without: Callable[[Sequence[T]], bool], in_time: Callable[[], bool]
) -> list[T]:
    """Return suspects without which the attempt succeeds, none of them superfluous.

    The attempt must succeed if all suspects are left out. Each guilty suspect is found by bisection, which prefers the
    first suspects. If time runs out, some of the returned suspects may be superfluous.
    """
    guilty: list[T] = []
    while not succeeds_without(guilty):
        low, high = 0, len(suspects)
        while high - low > 1 and in_time():
            middle = (low + high) // 2
            if succeeds_without([*guilty, *suspects[:middle]]):
                high = middle
            else:
                low = middle
        if not in_time() or high == 0:
            return [*guilty, *suspects[:high]]
        guilty.append(suspects[high - 1])
        suspects = suspects[: high - 1]
    return guilty


def _by_kind(state: SchedulerState, jobs: Sequence[str]) -> list[list[str]]:
    """Group the jobs that planning treats as equal. A user often submits hundreds of equal jobs."""
    kinds, groups = Kinds(), dict[int, list[str]]()
    for name in jobs:
        groups.setdefault(kinds.of(state.jobs[name]), []).append(name)
    return list(groups.values())


def _flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [name for group in groups for name in group]


def _cost(answer: Blame, before: tuple[int, int]) -> int:
    """Count the jobs and nodes of an answer.

    An answer with jobs also counts all jobs that were blamed earlier, and an answer with nodes all such nodes.
    """
    jobs, nodes = len(answer.jobs), len(answer.nodes)
    return jobs + nodes + (before[0] if jobs else 0) + (before[1] if nodes else 0)


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"
