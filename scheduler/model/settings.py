"""How the scheduler behaves. One frozen model; changing it is a fact."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

NEXT_LOOK_ROUNDS = (
    0.6  # how much further behind one is, at most, when turns are taken the next time (measured)
)
# Of what is entitled and received, at least so much fades in a round. Old settings may name any half-life.
LEAST_DECAY = 1e-9


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the tenant tree, by path ("org/team")."""

    name: str  # its path, such as "org/team"
    weight: float = 1.0  # against the other tenants below the same one: 2 is twice the share
    policy: str = "fairness"  # among what is below it: "fairness" or "fifo"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator can turn. Defaults suit a live cluster.

    Written out in full in the journal, so that a default may change without changing what old journals mean.
    """

    policy: str = "max_min_fairness"  # who gets how much; `gavel policies` lists them
    round_s: float = 360.0  # length of a round: how long a lease runs before turns are taken anew
    min_reallocation_s: float = 0.0  # between two allocations; never less than a round apart
    solve_lead_s: float = (
        10.0  # before the boundary: the solver is asked; a quarter of a round that is shorter
    )
    plan_lead_s: float = (
        2.0  # before the boundary: the round is planned with the newest answer; at most half of it
    )
    lease_margin_s: float = 30.0  # after its end a silent lease counts as running for so long
    fill_mid_round: bool = True  # GPUs that become idle are given out at once, not at the boundary
    half_life_rounds: float = 20.0  # of entitled and received time
    stay_rounds: float = 2.0  # so far may turns leave others behind their due; 0: turns of one round
    start_patience_s: float = 600.0  # a job that once lost its turn before a step is let start for so long
    reserve_after: int = 2  # rounds that a gang is skipped before GPUs are held back for it
    preemptions_max: int | None = None  # running jobs that may lose their GPUs in one round
    restart_cost_s: float = 30.0  # of a job that does not say: start-up and checkpoint
    consolidated_rates: bool = False  # use consolidated rates for every gang, however it is placed
    learn_rates: bool = True  # measured rates replace the table's
    trust_after_s: float = 60.0  # of measured stepping, at which a measured rate is fully believed
    prior_rate: float = 1.0  # steps/s of an unknown job type on the slowest worker type, per GPU
    speed: dict[str, float] = {}  # of worker types relative to each other, for unknown job types
    seed: int = 0  # of the draws that some policies make
    tenants: tuple[TenantSpec, ...] = ()

    @property
    def decay(self) -> float:
        """What is left of entitled and received time after a round."""
        faded: float = 0.5 ** (1.0 / self.half_life_rounds)
        return faded

    @property
    def stay_s(self) -> float:
        """Behind its due by so much a job has the next turn, so that few are ever `stay_rounds` behind."""
        return max(self.stay_rounds - NEXT_LOOK_ROUNDS, 0.0) * self.round_s

    @property
    def full_s(self) -> float:
        """What a share of all the time ever comes to."""
        return self.round_s / max(1.0 - self.decay, LEAST_DECAY)

    def completed(self, given: Container[str]) -> Settings:
        """These settings, with leads that fit a short round in place of defaults that do not. `given`: fields that
        somebody set, which stay as they are.
        """
        solve_lead_s, plan_lead_s = self.solve_lead_s, self.plan_lead_s
        if "solve_lead_s" not in given and not solve_lead_s < self.round_s:
            solve_lead_s = self.round_s / 4
            if "plan_lead_s" in given:
                solve_lead_s = max(solve_lead_s, plan_lead_s)
        if "plan_lead_s" not in given and plan_lead_s > solve_lead_s:
            plan_lead_s = solve_lead_s / 2
        return msgspec.structs.replace(self, solve_lead_s=solve_lead_s, plan_lead_s=plan_lead_s)

    def checked(self) -> Settings:
        """These settings, or InvalidSpec naming the first field that cannot be right."""
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
        names: set[str] = set()
        for tenant in self.tenants:
            bounds.check_text("tenants", tenant.name)
            if not tenant.name or tenant.name in names:
                raise InvalidSpec("tenants", f"the name '{tenant.name}' is empty or there twice")
            names.add(tenant.name)
            bounds.check(f"tenants.{tenant.name}.weight", tenant.weight, bounds.WEIGHT)
            if tenant.policy not in ("fairness", "fifo"):
                raise InvalidSpec(
                    f"tenants.{tenant.name}.policy",
                    f"is {bounds.shown(tenant.policy)}, must be 'fairness' or 'fifo'",
                )
        return self


# How the published figures were made: answers at once, everything at the boundary, restarts free, rates known.
COMPARISON = Settings(
    min_reallocation_s=1920.0,
    solve_lead_s=0.0,
    plan_lead_s=0.0,
    fill_mid_round=False,
    restart_cost_s=0.0,
    consolidated_rates=True,
    learn_rates=False,
)
