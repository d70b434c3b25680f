"""Stories in which everything goes wrong, drawn from a seed: the same seed gives the same story."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec

from scheduler.core.effects import Solve
from scheduler.core.messages import (
    Configure,
    Exit,
    Forget,
    JobCommand,
    Message,
    NodeCommand,
    NodeReport,
    Progress,
    SetPrices,
    Solved,
    Woke,
)
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import Dependency, JobSpec
from scheduler.model.lease import nodes_of
from scheduler.model.quota import Quota
from scheduler.model.settings import Settings, TenantSpec
from scheduler.sim.engine.physics import JobTruth
from scheduler.sim.scenario.faults import NodeEvent, failures, strike
from scheduler.solving import answer
from tests.support.core_world import Stage
from tests.support.desk import node

NODES = (node("n1", 2), node("n2", 2), node("n3", 1), node("k1", 2, "k80"), node("k2", 1, "k80"))
POLICIES = ("las", "las+packing", "fifo", "las+packing", "makespan")
# Nothing goes wrong after this time, and every job must come to its end.
HORIZON_S = 12_000.0


class Chaos:
    """One such story in its own world."""

    def __init__(
        self,
        seed: int,
        *,
        jobs: int = 14,
        network: bool = True,
        nodes: Sequence[NodeSpec] = NODES,
        quotas: bool = False,
        budgets: bool = False,
    ) -> None:
        self.luck = luck = Random(f"chaos/{seed}")
        # Drawn apart, so that the stories without quotas stay as they are.
        self.quota_luck = Random(f"quotas/{seed}") if quotas else None
        self.budget_luck = Random(f"budgets/{seed}") if budgets else None
        self.nodes = nodes
        settings = Settings(
            policy=luck.choice(POLICIES),
            fill_mid_round=luck.random() < 0.7,
            solve_lead_s=luck.choice((2.0, 10.0, 60.0)),
            min_reallocation_s=luck.choice((0.0, 900.0)),
            preemptions_max=luck.choice((None, None, 1)),
            restart_cost_s=20.0,
            reserve_after=luck.choice((1, 2)),
            tenants=self.tenants(),
        )
        link = {"lost": 0.05, "doubled": 0.1, "late": 0.1, "late_s": 8.0, "until_s": HORIZON_S}
        self.stage = Stage(
            nodes,
            settings,
            link=link if network else None,
            solver=self.solve,
            solver_latency_s=luck.choice((0.0, 0.0, 5.0, 500.0)),
            silence_s=luck.choice((0.0, 15.0)),
            seed=seed,
            knows_rates=luck.random() < 0.8,
        )
        self.stage.world.at(0.0, SetPrices(price_per_gpu_hour={"v100": 2.0}))
        # Ids of jobs that others depend on.
        self.dependencies: set[str] = set()
        self.names = [self.submit(i) for i in range(jobs)]
        self.faults()
        for _ in range(12):
            self.stage.world.at(luck.uniform(0, HORIZON_S), self.command)
            self.stage.world.at(luck.uniform(0, HORIZON_S), self.forge)
        self.stage.world.at(HORIZON_S, self.mend_all)
        for _ in range(3 if quotas or budgets else 0):
            self.stage.world.at(luck.uniform(0, HORIZON_S), self.change_quotas)

    def tenants(self) -> tuple[TenantSpec, ...]:
        """Return tenants with random quotas, each of which admits the widest job; none in stories without quotas."""
        luck = self.quota_luck
        if luck is None:
            return self.tenants_with_budgets()

        def quota(least: int) -> Quota:
            kinds = [kind for kind in ("v100", "k80", "*") if luck.random() < 0.5]
            gpus = {kind: luck.randint(least, 6) for kind in kinds}
            return Quota(gpus=gpus, jobs_running=luck.choice((None, None, 1, 2, 4)))

        return (
            TenantSpec(name="org", quota=quota(3), each_user=quota(3)),
            TenantSpec(name="org/a", quota=quota(3)),
            TenantSpec(name="default", quota=quota(3)),
        )

    def tenants_with_budgets(self) -> tuple[TenantSpec, ...]:
        """Return tenants with random budgets; none in stories without budgets."""
        luck = self.budget_luck
        if luck is None:
            return ()

        def quota() -> Quota:
            hours = {"day": luck.uniform(1.5, 4.0)} if luck.random() < 0.8 else {}
            cost = {"week": luck.uniform(4.0, 20.0)} if luck.random() < 0.3 else {}
            return Quota(gpu_hours=hours, cost=cost, beyond=luck.choice(("wait", "wait", "backfill")))

        return (
            TenantSpec(name="org", quota=quota(), each_user=quota()),
            TenantSpec(name="org/a", quota=quota()),
            TenantSpec(name="default", quota=quota()),
        )

    def change_quotas(self, now_s: float) -> list[Message]:
        """Give the tenants other quotas."""
        settings = msgspec.structs.replace(self.stage.state.settings, tenants=self.tenants())
        return [Configure(settings=settings)]

    def solve(self, question: Solve) -> Solved:
        """Return the true answer, a failed one, an outdated one, or one to a question that was never asked."""
        solved = answer(question)
        chance = self.luck.random() if self.stage.world.now_s < HORIZON_S else 1.0
        if chance < 0.15:
            return Solved(
                number=solved.number, policy="fifo", shares=solved.shares, failed="it ran out of time"
            )
        if chance < 0.2:
            return Solved(number=solved.number - 1, policy=solved.policy, shares=solved.shares)
        return solved

    def submit(self, i: int) -> str:
        """Submit a random job at a random time; return its name."""
        luck = self.luck
        gpus, steps = luck.choice((1, 1, 1, 2, 3)), luck.uniform(500, 30_000)
        kind = luck.choice(("cnn", "lm"))
        more: dict[str, Any] = {}
        for chance, fields in (
            (
                0.2,
                {
                    "after": (Dependency(str(luck.randint(1, i)), luck.choice(("succeeded", "ended"))),)
                    if i
                    else ()
                },
            ),
            (0.1, {"time_limit_s": luck.uniform(100, 4000)}),
            (0.1, {"earliest_start_s": luck.uniform(0, 6000)}),
            (0.2, {"min_run_s": 900.0}),
            (0.1, {"preemptible": False}),
            (0.2, {"gpus_min": 1, "gpus_max": 3}),
            (0.2, {"gpus_min": None, "gpus_max": None, "gpus_together": gpus}),
            (0.3, {"retries": 3}),
            (0.1, {"max_cost": 1.5}),
            (0.1, {"array": (0, 1)}),
            (0.1, {"reports_steps": False}),
            (0.1, {"packable": False}),
        ):
            if luck.random() < chance:
                more |= fields
        self.dependencies.update(dependency.job for dependency in more.get("after", ()))
        if self.quota_luck is not None:
            more["tenant"] = self.quota_luck.choice(("org/a", "org/b", "org", ""))
            more["user"] = self.quota_luck.choice(("ann", "bob"))
        obeys = luck.random() < 0.9
        truth = JobTruth(
            job_type=kind,
            gpus=gpus,
            steps_total=steps,
            restart_s=luck.choice((0.0, 5.0, 40.0)),
            checkpoint_s=luck.choice((0.0, 4.0)),
            save_every_s=luck.choice((60.0, math.inf)) if obeys else 60.0,
            ignores_stop=not obeys,
            fails_at_steps=luck.uniform(0, steps) if luck.random() < 0.15 else math.inf,
        )
        spec = JobSpec(
            name=f"j{i}", job_type=kind, gpus=gpus, steps=steps, weight=luck.choice((1.0, 2.0)), **more
        )
        self.stage.world.submit(luck.uniform(0, HORIZON_S / 2), [spec], truth, key=luck.choice(("", f"k{i}")))
        return spec.name

    def faults(self) -> None:
        """Let machines die, links break and nodes come back."""
        names = [spec.name for spec in self.nodes]
        pool = {spec.name: spec for spec in self.nodes}
        seed = self.luck.randrange(1 << 30)
        events = [
            *failures(names, mtbf_s=9000, mttr_s=400, until_s=HORIZON_S - 2000, seed=seed),
            *failures(names, mtbf_s=5000, mttr_s=150, until_s=HORIZON_S - 2000, seed=seed, kind="cut"),
        ]
        for event in events:
            self.stage.world.at(event.t_s, lambda now_s, event=event: self.strike(now_s, event, pool))

    def strike(self, now_s: float, event: NodeEvent, pool: Any) -> list[Message]:
        """Apply a fault; a node that is down already stays down."""
        return strike(self.stage.machines, now_s, event, pool)

    def command(self, now_s: float) -> Iterable[Message]:
        """Send a user's or an operator's command, sensible or not."""
        luck = self.luck
        if luck.random() < 0.3:
            action = luck.choice(("drain", "resume", "resume", "remove"))
            return [NodeCommand(call="c", node=luck.choice(self.nodes[:3]).name, action=action)]
        if luck.random() < 0.2:
            return [Woke(what=luck.choice(("tick", "plan", "fill", "review", "lapse")))]
        action = luck.choice(("cancel", "hold", "release", "release", "requeue"))
        return [JobCommand(call="c", job=str(luck.randint(1, len(self.names))), action=action)]

    def forge(self, now_s: float) -> Iterable[Message]:
        """Report about leases that the node does not have, or with figures that are not numbers."""
        luck, state = self.luck, self.stage.state
        lease, name = str(luck.randint(1, max(state.next_lease, 2))), luck.choice(self.nodes).name
        holding = state.leases.get(lease)
        is_own = holding is not None and name in nodes_of(holding.lease.gpus)
        steps = math.nan if is_own else 1e6
        exits = () if is_own else (Exit(lease, luck.choice(("finished", "failed")), steps, steps, 1.0, 1.0),)
        return [
            NodeReport(
                node=name,
                generation=luck.randint(0, 99),
                started=() if is_own else (lease,),
                progress=(Progress(lease, steps, steps, 1.0),),
                exits=exits,
            )
        ]

    def forget(self, now_s: float) -> Iterable[Message]:
        """Forget ended jobs and old requests, except jobs that a later submission depends on.

        The newest job of each type stays, too: the rates that were measured of the type go with its last job.
        """
        newest = {job.spec.job_type: name for name, job in self.stage.state.jobs.items()}
        names = [
            name
            for name in self.stage.state.jobs
            if name not in newest.values() and name.partition("_")[0] not in self.dependencies
        ]
        return [Forget(jobs=tuple(names), keys=tuple(self.stage.state.requests))]

    def mend_all(self, now_s: float) -> list[Message]:
        """Bring every node back and release every held job."""
        messages: list[Message] = []
        for spec in self.nodes:
            real = self.stage.real.nodes[spec.name]
            if not real.up:
                messages += self.stage.machines.repair(now_s, spec.name)
            elif not real.reachable:
                messages += self.stage.machines.mend(now_s, spec.name)
            elif spec.name not in self.stage.state.nodes:
                messages += self.stage.machines.cut(now_s, spec.name) + self.stage.machines.mend(
                    now_s, spec.name
                )
            messages.append(NodeCommand(node=spec.name, action="resume"))
        held = [job.id for job in self.stage.state.active.values() if job.state == "held"]
        return [*messages, *(JobCommand(job=name, action="release") for name in held)]
