"""Every metric of the scheduler: its name, meaning and labels. docs/metrics.md lists the same; a test compares them.

WARNING: dashboards and alerts outlive releases. A released name or label keeps its meaning.

No label names a job, a user, a node or an attempt: there are too many of them, and the history has them. Tenants beyond
TENANTS_MAX share the label `other`.
"""

from __future__ import annotations

from scheduler.live.observe.metrics.families import Folded, Registry
from scheduler.model.jobs import JobState

# How many tenants, worker types and policies get series of their own.
TENANTS_MAX, WORKER_TYPES_MAX, POLICIES_MAX = 100, 50, 20

# Bounds of histograms, in seconds.
_DELAY_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_CALL_S = (0.005, 0.02, 0.1, 0.5, 2.5, 10.0)
_APPEND_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
_PLAN_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
_SOLVE_S = (0.05, 0.25, 1.0, 5.0, 10.0, 20.0, 60.0)
# There is a series for each tenant, so these are few: a minute, ten minutes, one hour, six hours, a day, a week.
_WAIT_S = (60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)

# Values of the label `state` of `gavel_gpus`, in the order in which a GPU is counted by the first that applies.
HELD, BROKEN, UNREACHABLE, FAULTY, DRAINED, RESERVED, FREE = GPU_STATES = (
    *("held", "broken", "unreachable", "faulty", "drained", "reserved", "free"),
)
# Values of the label `cause` of `gavel_preemptions_total`: the round gave the GPUs to others; a budget was spent; the
# node was drained; it was out of use; the scheduler ended the lease before its round ended; or the agent ended it.
TURN, BUDGET, DRAIN, FAULT, RECALL, AGENT = PREEMPTION_CAUSES = (
    *("turn", "budget", "drain", "fault", "recall", "agent"),
)
# Values of the label `how` of `gavel_stop_outcomes_total`.
SAVED, SIGNALLED, KILLED = STOP_OUTCOMES = ("saved", "signalled", "killed")
# Values of the label `cause` of `gavel_solves_failed_total`: first come, first served took the policy's place; or there
# was no usable answer, and the last shares stayed.
FELL_BACK, NO_ANSWER = SOLVE_FAILURES = ("fell_back", "no_answer")
GRANTED, RENEWED, ENDED = LEASE_EVENTS = ("granted", "renewed", "ended")
# Values of the label `kind` of `gavel_gpu_seconds_total`, as in `gavel usage --kind`.
GPU_TIMES = ("useful", "restart", "lost", "idle")
# Values of the label `kind` of `gavel_warnings`.
WARNING_KINDS = (
    "journal",
    "files",
    "errors",
    "policy",
    "clock",
    "access",
    "certificate",
    "gpu",
    "node",
    "metrics",
    "notifications",
    "idle",
)


class Metrics:
    """All families. Their owners feed them: facts, the guard, the journal, the event loop and the gauges' task."""

    def __init__(self, version: str) -> None:
        self.registry = Registry()
        self.tenants = Folded(TENANTS_MAX)
        self.worker_types = Folded(WORKER_TYPES_MAX)
        self.policies = Folded(POLICIES_MAX)
        self._add_health(version)
        self._add_journal()
        self._add_jobs()
        self._add_gpus()
        self._add_rounds()
        self._add_policy()

    def text(self, *, openmetrics: bool = False) -> str:
        """Return all metrics as text."""
        self.folded_tenants.set(self.tenants.folded)
        return self.registry.text(openmetrics=openmetrics)

    def _add_health(self, version: str) -> None:
        add = self.registry
        add.gauge("gavel_build_info", "The release that runs; the value is always 1.", "version").set_all(
            {(version,): 1.0}
        )
        self.epoch = add.gauge("gavel_epoch", "The epoch: it grows with each start of the scheduler.")
        self.loop_delay = add.histogram(
            "gavel_loop_delay_seconds", "How late the event loop runs a timer.", bounds=_DELAY_S
        )
        self.calls = add.histogram(
            "gavel_call_seconds",
            "How long calls with one request and one answer took, by method and by the reason of their end.",
            *("method", "code"),
            bounds=_CALL_S,
        )
        self.watchers = add.gauge("gavel_watchers", "Calls that watch or follow something now.")
        self.warnings = add.gauge("gavel_warnings", "Warnings in gavel status, by kind.", "kind")
        self.clock_drift = add.gauge(
            "gavel_clock_drift_seconds", "How far the wall clock is ahead of the scheduler's clock."
        )
        self.certificates = add.gauge(
            "gavel_certificate_expiry_timestamp_seconds",
            "When a certificate that the scheduler uses ends.",
            "name",
        )
        # Channels are few, since only operators name them.
        self.notifications = add.counter(
            "gavel_notifications_total",
            "Tries to send a message to a channel, by how they ended.",
            *("channel", "outcome"),
        )
        self.notifications_waiting = add.gauge(
            "gavel_notifications_waiting", "Events that wait to be sent to a channel.", "channel"
        )
        self.folded_tenants = add.gauge(
            "gavel_metrics_folded_tenants", "Tenants that share the label other, because there are too many."
        )

    def _add_journal(self) -> None:
        add = self.registry
        self.appends = add.histogram(
            "gavel_journal_append_seconds", "How long a record took to become durable.", bounds=_APPEND_S
        )
        self.records = add.counter("gavel_journal_records_total", "Records written since the start.")
        self.journal_size = add.gauge("gavel_journal_size_bytes", "The size of the journal's files.")
        self.unsaved_facts = add.gauge(
            "gavel_facts_after_snapshot",
            "Facts that the next start would read, because they are newer than the last snapshot.",
        )

    def _add_jobs(self) -> None:
        add = self.registry
        self.jobs = add.gauge("gavel_jobs", "Jobs in memory, by state.", "state")
        self.jobs.set_all({(state.value,): 0.0 for state in JobState})
        self.submitted = add.counter("gavel_jobs_submitted_total", "Jobs that were accepted.")
        self.moves = add.counter(
            "gavel_job_moves_total",
            "Moves of jobs between states, and whether a user, an agent or the scheduler caused them.",
            *("move", "cause"),
        )
        self.queue_wait = add.histogram(
            "gavel_queue_wait_seconds",
            "From the submission of a job to its first start.",
            "tenant",
            bounds=_WAIT_S,
        )
        self.completion = add.histogram(
            "gavel_job_completion_seconds",
            "From the submission of a job to its completion.",
            "tenant",
            bounds=_WAIT_S,
        )
        self.oldest_wait = add.gauge(
            "gavel_oldest_wait_seconds",
            "How long the job that has waited longest for its first start has waited, and why it waits.",
            "reason",
        )

    def _add_gpus(self) -> None:
        add = self.registry
        self.gpus = add.gauge("gavel_gpus", "GPUs by worker type and state.", "worker_type", "state")
        self.idle_held = add.gauge(
            "gavel_gpus_idle_held", "GPUs that jobs hold and have left idle for long.", "worker_type"
        )
        self.nodes = add.gauge("gavel_nodes", "Nodes by worker type and state.", "worker_type", "state")
        self.gpu_seconds = add.counter(
            "gavel_gpu_seconds_total",
            "What a tenant's GPU time was used for, counted when leases end.",
            *("worker_type", "tenant", "kind"),
        )
        self.cost = add.counter(
            "gavel_cost_total", "What the GPU time of a tenant cost, counted when leases end.", "tenant"
        )

    def _add_rounds(self) -> None:
        add = self.registry
        self.round = add.gauge("gavel_round", "The number of the current round.")
        self.round_plan = add.histogram(
            "gavel_round_plan_seconds", "How long the core took to plan a round.", bounds=_PLAN_S
        )
        self.leases = add.counter("gavel_leases_total", "Leases granted, renewed and ended.", "what")
        self.preemptions = add.counter(
            "gavel_preemptions_total", "Times that a job lost its GPUs before it was done, by cause.", "cause"
        )
        self.stops = add.counter(
            "gavel_stop_outcomes_total",
            "How runs ended that the scheduler stopped: the job saved and left, or a signal or a kill ended it.",
            "how",
        )
        self.idle_with_queue = add.gauge(
            "gavel_gpus_idle_with_queue",
            "Free GPUs if a job waits that could run at once; 0 otherwise.",
        )
        self.leases.expect(LEASE_EVENTS)
        self.preemptions.expect(PREEMPTION_CAUSES)
        self.stops.expect(STOP_OUTCOMES)

    def _add_policy(self) -> None:
        add = self.registry
        self.solves = add.histogram(
            "gavel_solve_seconds",
            "From the question to the solver until its answer was adopted, by policy.",
            "policy",
            bounds=_SOLVE_S,
        )
        self.solves_failed = add.counter(
            "gavel_solves_failed_total",
            "Questions that the policy did not answer, by what was done.",
            "cause",
        )
        self.solves_failed.expect(SOLVE_FAILURES)
        self.allocation_age = add.gauge(
            "gavel_allocation_age_seconds",
            "How old the shares in force are, if jobs or nodes have changed since; 0 otherwise.",
        )
        self.share_due = add.gauge(
            "gavel_share_due", "GPUs that the shares in force give to a tenant.", "tenant", "worker_type"
        )
        self.share_received = add.gauge(
            "gavel_share_received", "GPUs that a tenant holds now.", "tenant", "worker_type"
        )
        self.quota = add.gauge(
            "gavel_quota",
            "Limits of tenants and what is used of them: GPUs by worker type, GPU-hours and cost by period.",
            *("tenant", "resource", "of", "what"),
        )
        self.price = add.gauge(
            "gavel_price",
            "What one more GPU would add to the value of the policy's objective.",
            "worker_type",
        )
