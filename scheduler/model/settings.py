"""Settings of the scheduler as one frozen struct. Changing them is a fact."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Annotated

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.quota import Quota

# Turns change only at boundaries. Until the next boundary, a job falls behind by this many more rounds (measured).
NEXT_LOOK_ROUNDS = 0.6
# The least part of a sum that counts as fading in a round. Old journals may hold half-lives so long that no part fades.
LEAST_DECAY = 1e-9


# The version of a tenant that is not declared.
UNDECLARED = "undeclared"


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the tenant tree, by path ("org/team")."""

    name: Annotated[str, "Its path, such as org/team."]
    weight: Annotated[
        float, "Its weight among the tenants of the same parent: 2 gets twice the share of 1."
    ] = 1.0
    policy: Annotated[str, "How the tenants and jobs below it share: fairness or fifo."] = "fairness"
    quota: Annotated[Quota, "What its jobs and those of all tenants below it may use together."] = Quota()
    each_user: Annotated[Quota, "What each user with jobs there may use of it."] = Quota()

    @property
    def version(self) -> str:
        """A text that differs for every declaration."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an operator can adjust. The defaults suit a live cluster.

    The journal holds every field, so that a default may change without changing the meaning of old journals.
    """

    policy: Annotated[str, "The scheduling policy; `gavel policies` lists all policies."] = "max_min_fairness"
    round_s: Annotated[float, "Length of a round; jobs take turns at the end of each round."] = 360.0
    min_reallocation_s: Annotated[
        float, "Shortest time between two allocations; at least a round in any case."
    ] = 0.0
    solve_lead_s: Annotated[
        float,
        "How long before the end of a round the solver is asked; by default at most a quarter of a round.",
    ] = 10.0
    plan_lead_s: Annotated[
        float,
        "How long before the end of a round the next one is planned; by default at most half of solve_lead_s.",
    ] = 2.0
    lease_margin_s: Annotated[float, "How long a lease on a silent node counts as running after its end."] = (
        30.0
    )
    fill_mid_round: Annotated[bool, "Give out idle GPUs at once instead of at the end of the round."] = True
    half_life_rounds: Annotated[
        float, "Half-life of the time that jobs are entitled to and have received."
    ] = 20.0
    stay_rounds: Annotated[
        float,
        "How many rounds a job may fall behind its due before it takes the turn of another; 0: turns of one round.",
    ] = 2.0
    start_patience_s: Annotated[
        float,
        "How long a job keeps its GPUs to reach its first step, if an earlier turn ended before that step.",
    ] = 600.0
    reserve_after: Annotated[int, "How many rounds a gang is skipped before GPUs are held back for it."] = 2
    preemptions_max: Annotated[int | None, "How many running jobs may lose their GPUs in one round."] = None
    restart_cost_s: Annotated[float, "Time to start and to checkpoint, for jobs that do not set it."] = 30.0
    consolidated_rates: Annotated[
        bool,
        "Use the consolidated rates for every gang, even one that is spread over more nodes than it needs.",
    ] = False
    learn_rates: Annotated[bool, "Let measured rates replace those of the table."] = True
    trust_after_s: Annotated[
        float, "After how many seconds of measured stepping a measured rate replaces that of the table."
    ] = 60.0
    explore: Annotated[
        float,
        "The part of the GPU time in which pairs of jobs try to share GPUs, so that their rates are known; 0: none.",
    ] = 0.02
    prior_rate: Annotated[float, "Steps/s per GPU of an unknown job type on the slowest worker type."] = 1.0
    speed: Annotated[dict[str, float], "Relative speed of worker types, for unknown job types."] = {}
    seed: Annotated[int, "Seed of the draws that some policies make."] = 0
    idle_after_s: Annotated[
        float,
        "How long all GPUs of a job are idle, and its steps stand still, before it is reported; 0: never.",
    ] = 1800.0
    idle_action: Annotated[
        str,
        "What happens to a job whose GPUs are idle: none (a warning), requeue or hold; idle_ok in the job excepts it.",
    ] = "none"
    tenants_declared: Annotated[
        bool, "Refuse jobs of tenants that are not declared; jobs that name no tenant are of `default`."
    ] = False
    tenants: tuple[TenantSpec, ...] = ()

    @property
    def decay(self) -> float:
        """The part of entitled and received time that remains after a round."""
        remaining: float = 0.5 ** (1.0 / self.half_life_rounds)
        return remaining

    @property
    def stay_s(self) -> float:
        """How much time a job may be behind what it is due before it gets the next turn."""
        return max(self.stay_rounds - NEXT_LOOK_ROUNDS, 0.0) * self.round_s

    @property
    def full_s(self) -> float:
        """The limit of the entitled time of a column with a share of 1: older rounds fade as new ones are added."""
        return self.round_s / max(1.0 - self.decay, LEAST_DECAY)

    def completed(self, explicit: Container[str]) -> Settings:
        """Return these settings with solve_lead_s and plan_lead_s shortened to fit a short round.

        `explicit` names the fields that were set by a user; these stay as they are.
        """
        solve_lead_s, plan_lead_s = self.solve_lead_s, self.plan_lead_s
        if "solve_lead_s" not in explicit and not solve_lead_s < self.round_s:
            solve_lead_s = self.round_s / 4
            if "plan_lead_s" in explicit:
                solve_lead_s = max(solve_lead_s, plan_lead_s)
        if "plan_lead_s" not in explicit and plan_lead_s > solve_lead_s:
            plan_lead_s = solve_lead_s / 2
        return msgspec.structs.replace(self, solve_lead_s=solve_lead_s, plan_lead_s=plan_lead_s)

    def checked(self) -> Settings:
        """Return these settings, or raise InvalidSpec naming the first field that is wrong."""
        bounds.check_all(self, bounds.SETTINGS)
        bounds.check_name("policy", self.policy, bounds.POLICY_CHARS_MAX)
        if not self.plan_lead_s <= self.solve_lead_s < self.round_s:
            raise InvalidSpec(
                "solve_lead_s",
                f"is {self.solve_lead_s}, must be at least plan_lead_s ({self.plan_lead_s}) "
                f"and below round_s ({self.round_s})",
            )
        bounds.check_each("speed", self.speed, bounds.FACTOR)
        bounds.check_count("tenants", self.tenants, bounds.ENTRIES_MAX)
        if self.idle_action not in ("none", "requeue", "hold"):
            raise InvalidSpec(
                "idle_action", f"is {bounds.readable(self.idle_action)}, must be 'none', 'requeue' or 'hold'"
            )
        names: set[str] = set()
        for tenant in self.tenants:
            bounds.check_text("tenants", tenant.name)
            if not tenant.name or tenant.name in names:
                raise InvalidSpec("tenants", f"the name '{tenant.name}' is empty or appears twice")
            names.add(tenant.name)
            bounds.check(f"tenants.{tenant.name}.weight", tenant.weight, bounds.WEIGHT)
            if tenant.policy not in ("fairness", "fifo"):
                raise InvalidSpec(
                    f"tenants.{tenant.name}.policy",
                    f"is {bounds.readable(tenant.policy)}, must be 'fairness' or 'fifo'",
                )
            tenant.quota.check(f"tenants.{tenant.name}.quota")
            tenant.each_user.check(f"tenants.{tenant.name}.each_user")
        return self


# The assumptions behind the figures published for the research prototype of Gavel: the solver answers immediately,
# leases change only at boundaries, restarts cost nothing, and all rates are known.
COMPARISON = Settings(
    min_reallocation_s=1920.0,
    solve_lead_s=0.0,
    plan_lead_s=0.0,
    fill_mid_round=False,
    restart_cost_s=0.0,
    consolidated_rates=True,
    learn_rates=False,
)
