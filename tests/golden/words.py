"""Facts as lines of text, with the names of jobs instead of their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scheduler.core import facts as f
from scheduler.model.lease import Bundle, Lease

# The store that all nodes of a scenario see by default.
SHARED = "shared"


class Words:
    """Describes facts, and remembers the names of jobs and the jobs of leases."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.leases: dict[str, str] = {}

    def line(self, fact: f.Fact) -> str:
        """The line for a fact; empty for a fact that needs none."""
        for lease in getattr(fact, "granted", ()):
            self.leases[lease.id] = lease.job
        return _LINES[type(fact)](self, fact)

    def job(self, job: str) -> str:
        """The name of a job."""
        return self.names.get(job, f"job {job}")

    def lease(self, lease: str) -> str:
        """The number of a lease, and its job."""
        return f"lease {lease} ({self.job(self.leases[lease])})"

    def bundle(self, bundle: Bundle) -> str:
        """The jobs of a bundle, and its GPUs."""
        jobs = " + ".join(self.job(job) for job in bundle.jobs)
        return f"{jobs} on {bundle.gpus} {bundle.worker_type}"

    def submitted(self, fact: f.JobSubmitted) -> str:
        """A line for a submission; the job has a name from now on."""
        _, _, index = fact.job.partition("_")
        self.names[fact.job] = fact.spec.name + (f"[{index}]" if index else "")
        waits = ", ".join(self.job(other) for other in fact.blocked_by)
        return f"{self.job(fact.job)} is submitted" + (f", waits for {waits}" if waits else "")

    def adopted(self, fact: f.AllocationAdopted) -> str:
        """A line with the adopted shares above 0."""
        shares = fact.shares
        parts: dict[str, list[str]] = {}
        for first, second, kind, gpus, share in zip(
            shares.first, shares.second, shares.worker_type, shares.gpus, shares.share, strict=True
        ):
            if share > 0:
                jobs = " + ".join(self.job(shares.jobs[row]) for row in (first, second) if row >= 0)
                parts.setdefault(jobs, []).append(f"{share:.2g} of {gpus} {shares.worker_types[kind]}")
        listed = "; ".join(f"{jobs}: {', '.join(part)}" for jobs, part in parts.items()) or "none"
        return f"shares by {fact.policy}: {listed}" + (
            f" (first come, first served: {fact.failed})" if fact.failed else ""
        )

    def granted(self, leases: Iterable[Lease]) -> list[str]:
        """A line for each new lease."""
        lines = []
        for lease in leases:
            partner = [self.job(job) for job in lease.bundle.jobs if job != lease.job]
            beside = f" beside {partner[0]}" if partner else ""
            plan = f" by {lease.bundle.label}" if lease.bundle.label else ""
            lines.append(f"+ {self.lease(lease.id)}{beside}{plan} on {places(lease.gpus)}")
        return lines

    def rebundled(self, changes: Iterable[tuple[str, Bundle]]) -> list[str]:
        """Return a line for each lease that continues with another partner, or alone."""
        return [
            f"= {self.lease(lease)} goes on "
            + (f"as {self.bundle(bundle)}" if len(bundle.jobs) > 1 else "alone")
            for lease, bundle in changes
        ]

    def planned(self, fact: f.RoundPlanned) -> str:
        """The lines for a round and its changes."""
        parts = [f"- {self.lease(lease)}" for lease in fact.ended]
        parts += self.granted(fact.granted) + self.rebundled(fact.rebundled)
        parts += [f"! {kind} is held back for {self.bundle(b)}" for kind, b in sorted(fact.reserved.items())]
        parts += [f"! {self.bundle(bundle)} is skipped" for bundle in fact.skipped]
        return f"round {fact.number}, {fact.starts_s:g} to {fact.ends_s:g}" + "".join(
            f"\n          {part}" for part in parts
        )

    def closed(self, fact: f.LeaseClosed) -> str:
        """The line for the end of a lease."""
        end = fact.exit
        how = "lapsed" if fact.lapsed else end.outcome.replace("_", " ")
        return f"{self.lease(end.lease)} is over: {how}, {end.saved:.0f} steps saved, ran {end.ran_s:g} s"


def places(gpus: Iterable[str]) -> str:
    """GPUs by node, in the form n1:0,1 n2:0."""
    nodes: dict[str, list[str]] = {}
    for gpu in gpus:
        name, _, index = gpu.rpartition(":")
        nodes.setdefault(name, []).append(index)
    return " ".join(f"{name}:{','.join(indices)}" for name, indices in nodes.items())


def _why(why: str) -> str:
    return f": {why}" if why else ""


_LINES: dict[type[f.Fact], Callable[[Words, Any], str]] = {
    f.Configured: lambda w, x: "",
    f.RatesGiven: lambda w, x: "",
    f.PricesSet: lambda w, x: "",
    f.EpochStarted: lambda w, x: f"a scheduler takes over, epoch {x.epoch}",
    f.RecordsLost: lambda w, x: f"{x.records} records are lost",
    f.JobSubmitted: Words.submitted,
    f.JobsForgotten: lambda w, x: f"forgotten: {', '.join(map(w.job, x.jobs))}",
    f.JobMoved: lambda w, x: f"{w.job(x.job)}: {x.move}{_why(x.why)}",
    f.NodeJoined: lambda w, x: f"node {x.spec.name} joins with {x.spec.gpus} {x.spec.worker_type}",
    f.NodeMoved: lambda w, x: f"node {x.node} is {x.state}{_why(x.why)}",
    f.NodeRemoved: lambda w, x: f"node {x.node} is removed{f' by {x.by}' if x.by else ''}",
    f.GpusWithheld: lambda w, x: f"withheld: {places(f'{x.node}:{i}' for i in x.gpus) or 'none'}",
    f.GpusBroken: lambda w, x: f"broken: {places(f'{x.node}:{i}' for i in x.gpus)}",
    f.AllocationAsked: lambda w, x: "the solver is asked",
    f.AllocationAdopted: Words.adopted,
    f.AllocationFailed: lambda w, x: f"no new shares: {x.why}",
    f.RoundPlanned: Words.planned,
    f.GpusFilled: lambda w, x: (
        "idle GPUs are given out"
        + "".join(f"\n          {part}" for part in (*w.granted(x.granted), *w.rebundled(x.rebundled)))
    ),
    f.LeaseRecalled: lambda w, x: f"{w.lease(x.lease)} is recalled{_why(x.why)}",
    f.LeasesStarted: lambda w, x: f"{', '.join(map(w.lease, x.leases))} runs",
    f.ProgressMade: lambda w, x: "; ".join(f"{w.lease(p.lease)}: {p.steps:.0f} steps" for p in x.progress),
    f.CheckpointSaved: lambda w, x: "" if x.place == SHARED else f"{w.job(x.job)} has saved at {x.place}",
    f.RanksExited: lambda w, x: f"{w.lease(x.exit.lease)}: its ranks on {x.node} are gone",
    f.LeasesResumed: lambda w, x: f"{', '.join(map(w.lease, x.leases))} goes on",
    f.LeaseClosed: Words.closed,
}
