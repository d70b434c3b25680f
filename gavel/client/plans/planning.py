"""Computes the automatic plans of jobs for the nodes of a cluster. The planner is imported with the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

from gavel.client.jobs.auto_plans import source_of
from gavel.client.jobs.errors import field_at, objection
from gavel.client.jobs.plan_file import plans_of
from gavel.client.jobs.spec import AutoPlans, JobSpec, Plan
from protos.extras import install_command
from protos.files.errors import BadInput

if TYPE_CHECKING:
    from gavel.client.jobs.packing import Progress
    from gavel.client.results import Node
    from planner.cluster import Gpu
    from planner.figures import Model

    # The GPUs of each worker type.
    Cluster = tuple[tuple[Gpu, int], ...]


def planned(
    specs: Sequence[JobSpec], nodes: Sequence[Node], progress: Progress | None = None
) -> tuple[tuple[JobSpec, ...], tuple[str, ...]]:
    """Return the jobs with their automatic plans computed for these nodes, and notes. Raises InvalidJob."""
    planning = _Planning(nodes, progress)
    return tuple([planning.of(spec) for spec in specs]), tuple(planning.notes)


def may_use(spec: JobSpec, worker_type: str) -> bool:
    """Whether a job may run on GPUs of this type."""
    allowed = not spec.worker_types or worker_type in spec.worker_types
    return allowed and worker_type not in spec.excluded_worker_types


def allows(spec: JobSpec, node: Node) -> bool:
    """Whether a job may run on a node, by name, type, labels and memory of its GPUs."""
    memory_gb = [gpu.memory_gb for gpu in node.gpus]
    return (
        may_use(spec, node.worker_type)
        and (not spec.nodes or node.name in spec.nodes)
        and all(node.labels.get(name) == value for name, value in spec.labels.items())
        # GPUs of unknown memory count as large enough, as they do for the scheduler.
        and not (all(memory_gb) and min(memory_gb, default=0.0) < (spec.gpu_memory_gb or 0.0))
    )


class _Planning:
    """Computes plans for the nodes of one moment; equal jobs are planned once."""

    def __init__(self, nodes: Sequence[Node], progress: Progress | None) -> None:
        self._nodes, self._progress = nodes, progress
        self._known: dict[Any, tuple[Plan, ...]] = {}
        # Each note once, in order.
        self.notes: dict[str, None] = {}

    def of(self, spec: JobSpec) -> JobSpec:
        """Return a job with its plans."""
        auto = spec.plans
        if not isinstance(auto, AutoPlans):
            return spec
        if not spec.job_type:
            raise objection(
                spec, "job_type", "is missing: it names what the measured rates of the plans belong to"
            )
        try:
            source = source_of(auto, spec)
            plans = self._plans(auto, source, spec)
        except BadInput as error:
            raise objection(spec, field_at(("plan", *error.place)), error.problem) from None
        widths = {plan.gpus for plan in plans}
        gpus = spec.gpus if spec.gpus is None or spec.gpus in widths else min(widths)
        return replace(spec, plans=plans, plans_from=source, gpus=gpus)

    def _plans(self, auto: AutoPlans, source: str, spec: JobSpec) -> tuple[Plan, ...]:
        try:
            from gavel.plans import PlanError, model_of
        except ImportError:
            raise BadInput(f"auto needs the extra 'plan': {install_command('plan')}") from None
        try:
            model = model_of(auto.model)
            cluster = self._cluster(spec, model)
            key = (source, cluster, spec.gpus_together)
            if key not in self._known:
                self._known[key] = self._computed(auto, model, cluster, spec)
            return self._known[key]
        except PlanError as error:
            raise BadInput(str(error)) from None

    def _cluster(self, spec: JobSpec, model: Model) -> Cluster:
        """Return the GPUs that the job may use, as the planner sees them."""
        from gavel.plans import PlanError, gpu_of

        sizes: dict[str, list[int]] = {}
        memory_gb: dict[str, float] = {}
        for node in self._nodes:
            if node.gpus and allows(spec, node):
                sizes.setdefault(node.worker_type, []).extend([len(node.gpus)] * len(node.gpus))
                for gpu in node.gpus:
                    if gpu.memory_gb:
                        least = memory_gb.get(node.worker_type, gpu.memory_gb)
                        memory_gb[node.worker_type] = min(least, gpu.memory_gb)
        if not sizes:
            raise BadInput("auto finds no node in the cluster that the job may use: plan by a file instead")
        cluster = []
        for name in sorted(sizes):
            try:
                # Half of the GPUs are on nodes of this size or a larger one.
                kind = gpu_of(
                    name,
                    median_low(sizes[name]),
                    memory_gb=memory_gb.get(name),
                    profiled=getattr(model, "worker_types", ()),
                )
            except PlanError as error:
                self.notes[f"plan: no plans for {name}: {error}"] = None
                continue
            cluster.append((kind, len(sizes[name])))
        if not cluster:
            raise BadInput(
                f"the planner knows no worker type that the job may use: {', '.join(sorted(sizes))}"
            )
        return tuple(cluster)

    def _computed(self, auto: AutoPlans, model: Model, cluster: Cluster, spec: JobSpec) -> tuple[Plan, ...]:
        from gavel.plans import Allowed, as_entries, needed, plan_rows, with_estimates
        from planner.profile import Profile

        allowed = Allowed((auto.schedule,) if auto.schedule else Allowed().schedules, auto.max_tensor)
        if isinstance(model, Profile):
            model, notes = with_estimates(model, [gpu for gpu, _ in cluster])
            self.notes |= dict.fromkeys(f"plan: {note}" for note in notes)
        rows, reasons = [], []
        for gpu, count in cluster:
            widths = _widths(spec, gpu, count)
            if not widths:
                reasons.append(f"there are only {count} {gpu.name}")
                continue
            of_type, why_none = plan_rows(model, [(gpu, count)], auto.batch, widths, allowed, self._progress)
            rows += of_type
            reasons += why_none
        if not rows:
            raise BadInput(f"no plan is possible: {'; '.join(reasons)}")
        return plans_of(as_entries(model, needed(rows)))


def _widths(spec: JobSpec, gpu: Gpu, count: int) -> list[int]:
    """Return the numbers of GPUs to plan for, in ascending order; the ends of the job's range are among them."""
    from gavel.plans import widths

    together = spec.gpus_together or 1
    usual = {together * width for width in widths(gpu, count)}
    if spec.gpus is None:
        least, most = 1, count
    else:
        least, most = spec.gpus_min or spec.gpus, spec.gpus_max or spec.gpus
        usual |= {*widths(gpu, count), least, most}
    return sorted(width for width in usual if least <= width <= min(most, count) and width % together == 0)
