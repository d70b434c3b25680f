"""Transcripts: lines that begin with `>` are commands, and the lines below each are its outcome.

    settings NAME=VALUE …             rates TYPE WORKER=STEPS_PER_S …         pair WORKER TYPE TYPE RATE RATE
    truth TYPE WORKER=STEPS_PER_S … (true rates that the scheduler does not have)
    node NAME WORKER GPUS [storage=…] submit NAME [gpus=2] [steps=…] [after=NAME] [ended=NAME] [restart=…] …
                                      … plans=WORKER:GPUS:LABEL:PREDICTED:TRUE,… (rates of all GPUs of the plan)
    cancel|hold|release|requeue JOB   drain|resume|remove NODE
    lose|back|cut|mend NODE           reclaim NODE NOTICE_S                   fix JOB
    jam|unjam NODE (no start succeeds)                                        trouble NODE TEXT (its agent reports)
    solver works|fails WHY            explain JOB                             kill (the scheduler, and start it again)
    at TIME                           run (to the end)

Rates are per GPU. The scheduler, its loop and the agents are the real ones; only machines and time are simulated.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from scheduler.core.effects import Solve
from scheduler.core.messages import Configure, GiveRates, JobCommand, Message, NodeCommand, NodeReport, Solved
from scheduler.explain import explain
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import Dependency, JobSpec
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from scheduler.solving import answer
from tests.golden.words import SHARED, Words
from tests.support.core_world import Stage
from traces.cpu_rates import CpuRates
from worker_agent.core.messages import Limits

# Reports of progress are rare, because transcripts are not about them.
QUIET = Limits(report_interval_s=1e6, late_s=0.0, ask_s=20.0, grace_s=5.0)
END_S = 100_000.0
DEFAULTS = {"policy": "las", "restart_cost_s": 0.0, "learn_rates": False}
PLAN = ("worker_type", "gpus", "label", "rate")
TRUTHS = {
    "restart": "restart_s",
    "checkpoint": "checkpoint_s",
    "fails_at": "fails_at_steps",
    "save": "save_every_s",
}


@dataclass
class Table:
    """The true rates, which commands add to."""

    solo: dict[tuple[str, int, str], float] = field(default_factory=dict)
    unconsolidated: dict[tuple[str, int, str], float] = field(default_factory=dict)
    pairs: dict[tuple[str, str, int, str, int], tuple[float, float]] = field(default_factory=dict)
    cpu_rates: dict[tuple[str, int, str], CpuRates] = field(default_factory=dict)


@dataclass
class Play:
    """A stage on which commands are performed line by line."""

    table: Table = field(default_factory=Table)
    words: Words = field(default_factory=Words)
    truths: dict[str, JobTruth] = field(default_factory=dict)
    failing: str = ""
    # How many records have been reported.
    reported: int = 0

    def __post_init__(self) -> None:
        """Set up an empty stage."""
        settings = convert(DEFAULTS, Settings)
        self.stage = Stage([], settings, limits=QUIET, table=self.table, knows_rates=False, solver=self.solve)

    @property
    def now_s(self) -> float:
        """The time on stage."""
        return self.stage.world.now_s

    def perform(self, line: str) -> list[str]:
        """Perform a command; return the lines of its outcome."""
        word, *rest = shlex.split(line)
        printed = getattr(self, f"do_{word}")(*rest)
        self.stage.until(self.now_s)
        replies = [f"          refused: {reply.error}" for reply in self.stage.world.refusals]
        self.stage.world.refusals.clear()
        return [*self.news(), *replies, *(printed or ())]

    def news(self) -> Iterator[str]:
        """Yield lines about the facts that have not been reported yet."""
        records = self.stage.journal.records
        while self.reported < len(records):
            now_s, facts = records[self.reported]
            self.reported += 1
            for fact in facts:
                line = self.words.line(fact)
                if line:
                    yield f"{round(now_s, 1):>8g}  {line}"

    def send(self, message: Message | Callable[[float], Any]) -> None:
        """Send the message, or let the event happen, now."""
        self.stage.world.at(self.now_s, message)

    def solve(self, question: Solve) -> Solved:
        """Answer as the policy does, or fail."""
        if not self.failing:
            return answer(question)
        question_fifo = Solve(question.number, "fifo", question.problem)
        fallback = answer(question_fifo)
        return Solved(number=fallback.number, policy="fifo", shares=fallback.shares, failed=self.failing)

    def id_of(self, name: str) -> str:
        """The id of a job, or of a whole array."""
        for job, its_name in self.words.names.items():
            if its_name == name or its_name.startswith(f"{name}["):
                return job if its_name == name else job.partition("_")[0]
        raise LookupError(f"no job is called {name!r}")

    # ---------------------------------------------------------------------------------------------- commands

    def do_settings(self, *pairs: str) -> None:
        """Change settings."""
        changed = convert({**DEFAULTS, **options(pairs)}, Settings, strict=False)
        self.send(Configure(settings=changed))

    def do_rates(self, job_type: str, *pairs: str) -> None:
        """Give the scheduler a rate, in steps per second on each GPU of a type."""
        for worker, rate in options(pairs).items():
            rows = [(job_type, gpus, worker, gpus * float(rate)) for gpus in range(1, 9)]
            self.table.solo.update({row[:3]: row[3] for row in rows})
            self.send(GiveRates(solo=rows))

    def do_truth(self, job_type: str, *pairs: str) -> None:
        """Set a true rate without giving it to the scheduler."""
        for worker, rate in options(pairs).items():
            self.table.solo.update({(job_type, gpus, worker): gpus * float(rate) for gpus in range(1, 9)})

    def do_pair(self, worker: str, a: str, b: str, rate_a: str, rate_b: str) -> None:
        """Give the rates of two jobs on one GPU."""
        both = float(rate_a), float(rate_b)
        pairs = self.table.pairs
        pairs[worker, a, 1, b, 1], pairs[worker, b, 1, a, 1] = both, both[::-1]
        self.send(GiveRates(pairs=[(worker, a, b, 1, *both)]))

    def do_node(self, name: str, worker: str, gpus: str, storage: str = SHARED) -> None:
        """Let a node join."""
        storage = storage.removeprefix("storage=")
        spec = NodeSpec(name=name, worker_type=worker, gpus=int(gpus), storage=storage)
        self.send(lambda now_s: self.stage.machines.join(now_s, spec))

    def do_submit(self, name: str, *pairs: str) -> None:
        """Submit a job; unless options differ, it behaves as it is described."""
        fields: dict[str, Any] = options(pairs)
        truth = {TRUTHS[key]: fields.pop(key) for key in tuple(fields) if key in TRUTHS}
        fields.setdefault("job_type", fields.pop("type", "cnn"))
        after = [Dependency(self.id_of(other)) for other in filter(None, [fields.pop("after", "")])]
        after += [Dependency(self.id_of(other), "ended") for other in filter(None, [fields.pop("ended", "")])]
        if "array" in fields:
            fields["array"] = fields["array"].split(",")
        steps = float(fields.get("steps", "inf"))
        plans = [entry.split(":") for entry in filter(None, fields.pop("plans", "").split(","))]
        fields["plans"] = [dict(zip(PLAN, plan, strict=False)) for plan in plans]
        spec = convert({"name": name, **fields}, JobSpec, strict=False)
        spec = replace(spec, after=tuple(after))
        facts = {"job_type": spec.job_type, "gpus": spec.gpus, "steps_total": steps, **truth}
        planned = {(worker, int(gpus)): float(true) for worker, gpus, _, _, true in plans}
        self.truths[name] = replace(convert(facts, JobTruth, strict=False), planned=planned)
        self.stage.world.submit(self.now_s, [spec], self.truths[name])

    def do_fix(self, name: str) -> None:
        """Mend the job's script: its next attempt does not fail."""
        self.stage.physics.set_truth(
            self.id_of(name), replace(self.truths[name], fails_at_steps=float("inf"))
        )

    def do_at(self, time: str) -> None:
        """Let time pass."""
        self.stage.until(float(time))

    def do_run(self) -> list[str]:
        """Play until all jobs have ended."""
        while self.stage.state.active and self.now_s < END_S:
            self.stage.until(self.now_s + 60)
        return [] if not self.stage.state.active else [f"          after {END_S:g} s it still goes on"]

    def do_explain(self, name: str) -> list[str]:
        """Explain a job."""
        explained = explain(self.stage.state, self.id_of(name), self.now_s)
        return [f"          {explained.reason}: {explained.text}"]

    def do_kill(self) -> None:
        """Kill the scheduler, and start another one at once."""
        self.stage.restart(0.0)

    def do_solver(self, how: str, why: str = "") -> None:
        """Let the solver work, or fail for a reason."""
        self.failing = why if how == "fails" else ""

    def do_trouble(self, name: str, trouble: str = "") -> None:
        """Let a node's agent report trouble; without a text, that the trouble is over."""
        generation = self.stage.state.nodes[name].generation
        self.send(NodeReport(node=name, generation=generation, trouble=trouble))

    def do_reclaim(self, name: str, notice_s: str) -> None:
        """Drain a spot node now, and take it away after the notice."""
        self.send(NodeCommand(node=name, action="drain", user="spot"))
        self.stage.world.at(
            self.now_s + float(notice_s), lambda now_s: self.stage.machines.crash(now_s, name)
        )


def _on_job(action: Any) -> Callable[[Play, str], None]:
    return lambda play, name: play.send(JobCommand(call="c", job=play.id_of(name), action=action))


def _on_node(action: Any) -> Callable[[Play, str], None]:
    return lambda play, name: play.send(NodeCommand(call="c", node=name, action=action))


def _on_machine(method: str) -> Callable[[Play, str], None]:
    return lambda play, name: play.send(lambda now_s: getattr(play.stage.machines, method)(now_s, name))


for _word in ("cancel", "hold", "release", "requeue"):
    setattr(Play, f"do_{_word}", _on_job(_word))
for _word in ("drain", "resume", "remove"):
    setattr(Play, f"do_{_word}", _on_node(_word))
for _word, _method in (
    ("lose", "crash"),
    ("back", "repair"),
    *((w, w) for w in ("cut", "mend", "jam", "unjam")),
):
    setattr(Play, f"do_{_word}", _on_machine(_method))


def options(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse words of the form name=value."""
    return dict(pair.split("=", 1) for pair in pairs)


def played(transcript: str) -> str:
    """Return the transcript with its comments and commands, and with the current outcomes."""
    play = Play()
    lines: list[str] = []
    for line in transcript.splitlines():
        if line.startswith("#") or not line.strip():
            lines += [line] if line.startswith("#") else []
        elif line.startswith("> "):
            lines += (
                ["", line]
                if not line.startswith(("> settings", "> rates", "> pair", "> truth", "> node"))
                else [line]
            )
            lines += play.perform(line[2:])
    return "\n".join(lines).rstrip() + "\n"
