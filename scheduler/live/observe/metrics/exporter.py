"""The metrics of a running scheduler: fed by the feed, the guard and the event loop, and served on their port.

Nothing here stops the scheduler: if the port cannot be opened or a gauge cannot be set, `gavel status` shows a warning.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from scheduler.core.facts import Fact, RoundPlanned
from scheduler.live.access.auth import Recognise
from scheduler.live.access.limits import Slots
from scheduler.live.access.tls import Keys
from scheduler.live.config import METRICS_PORT, Address, DaemonConfig, address_of
from scheduler.live.feed import Feed
from scheduler.live.job_feed import JobChanges
from scheduler.live.observe.metrics.catalogue import GPU_TIMES, WARNING_KINDS, Metrics
from scheduler.live.observe.metrics.from_facts import FactCounters
from scheduler.live.observe.metrics.from_state import StateGauges
from scheduler.live.observe.metrics.port import MetricsPort
from scheduler.live.observe.notify.notifier import Notifier
from scheduler.live.observe.past_rows import PastLease
from scheduler.live.world import LiveWorld

log = logging.getLogger(__name__)

# How often gauges are set, and how often the delay of the event loop is measured.
GAUGES_S, PROBE_S = 5.0, 0.25


class Exporter:
    """The metrics. `set_gauges` has to be called every GAUGES_S, and `measure_delay` in a loop."""

    def __init__(
        self,
        world: LiveWorld,
        feed: Feed,
        changes: JobChanges,
        watchers: Slots,
        folder: Path,
        all_warnings: Callable[[], Mapping[str, Sequence[str]]],
        keys: Keys,
        notifier: Notifier,
    ) -> None:
        """`all_warnings`: returns the lines of `gavel status` by kind. `keys`: those that the scheduler uses."""
        self._world, self._feed, self._watchers, self._folder = world, feed, watchers, folder
        self._all_warnings = all_warnings
        self._keys, self._notifier = keys, notifier
        self.metrics = metrics = Metrics(version("gavel-scheduler"))
        metrics.certificates.set_all({(name,): end.timestamp() for name, end in keys.expiry_times().items()})
        feed.listen(FactCounters(metrics, world.state).listen)
        feed.listen(self._note_record)
        self._gauges = StateGauges(metrics, world.state, changes.states)
        # Returns how many facts no snapshot covers.
        self.unsaved_facts: Callable[[], int] = lambda: 0
        # Where the metrics are served, and why they are not. None and empty: they are switched off.
        self.address: Address | None = None
        self._port_trouble = self._gauge_trouble = ""

    def note_call(self, method: str, code: str, duration_s: float) -> None:
        """Count a call that has ended. `method` is its full name, such as /gavel.v1.Jobs/GetJob."""
        self.metrics.calls.observe(method.rpartition(".")[2], code, value=duration_s)

    def note_ended(self, leases: Sequence[PastLease]) -> None:
        """Count the GPU time of leases that have ended."""
        metrics = self.metrics
        for lease in leases:
            restart_ms = lease.held_ms - lease.useful_ms - lease.lost_ms - lease.idle_ms
            labels = metrics.worker_types.name(lease.worker_type), metrics.tenants.name(lease.tenant)
            parts_ms = lease.useful_ms, restart_ms, lease.lost_ms, lease.idle_ms
            for kind, part_ms in zip(GPU_TIMES, parts_ms, strict=True):
                metrics.gpu_seconds.add(*labels, kind, amount=lease.gpus * part_ms / 1000)

    def _note_record(self, now_s: float, facts: Sequence[Fact]) -> None:
        began_s = self._feed.append_began_s
        self.metrics.appends.observe(value=self._feed.append_ended_s - began_s)
        # Nothing else in a record takes as long to decide as a round.
        if any(type(fact) is RoundPlanned for fact in facts):
            self.metrics.round_plan.observe(value=began_s - self._world.batch_began_s)

    async def set_gauges(self) -> None:
        """Set every gauge."""
        metrics, now_s = self.metrics, self._world.now_s()
        try:
            self._gauges.update(now_s)
            counts = {kind: len(lines) for kind, lines in self._all_warnings().items()}
            metrics.warnings.set_all({(kind,): counts.get(kind, 0) for kind in WARNING_KINDS})
            metrics.watchers.set(self._watchers.used)
            metrics.clock_drift.set(self._world.clock.drift_s)
            self._set_notifications()
            metrics.unsaved_facts.set(self.unsaved_facts())
            metrics.journal_size.set(_size_of(self._folder, "journal.db", "journal.db-wal"))
        except Exception as error:
            self._gauge_trouble = f"metrics are out of date ({type(error).__name__}); the log has the details"
            raise
        self._gauge_trouble = ""

    def _set_notifications(self) -> None:
        metrics, notifier = self.metrics, self._notifier
        for name, sender in notifier.senders.items():
            for outcome, count in sender.tries.items():
                metrics.notifications.values[name, outcome] = count
        metrics.notifications_waiting.set_all(
            {(name,): notifier.waiting(name).events for name in notifier.senders}
        )

    async def measure_delay(self) -> None:
        """Measure once how late the event loop runs a timer."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + PROBE_S
        await asyncio.sleep(PROBE_S)
        self.metrics.loop_delay.observe(value=loop.time() - due_s)

    @asynccontextmanager
    async def serving(self, config: DaemonConfig, recognise: Recognise) -> AsyncIterator[None]:
        """Serve the metrics where the settings say, if that is possible."""
        port = await self._open(config, recognise) if config.metrics_listen else None
        try:
            yield
        finally:
            if port is not None:
                await port.close()

    async def _open(self, config: DaemonConfig, recognise: Recognise) -> MetricsPort | None:
        """Open the port; if that is impossible, keep the reason for `warnings` and return None."""
        address = address_of("metrics_listen", config.metrics_listen, METRICS_PORT)
        try:
            # asyncio describes a failure less clearly.
            address.try_to_bind()
            if address.is_loopback:
                port = MetricsPort(self._render)
            else:
                port = MetricsPort(self._render, recognise, tls_context(config, self._keys))
            self.address = Address(address.host, await port.open(*address))
        except OSError as error:
            self._port_trouble = (
                f"metrics are not served: {address} cannot be listened on ({(error.strerror or str(error)).lower()}); "
                "stop the program that uses it, or set metrics_listen to another address, and restart the scheduler"
            )
            log.warning("%(trouble)s", {"trouble": self._port_trouble})
            return None
        return port

    def warnings(self) -> Iterator[str]:
        """Yield warnings for operators."""
        yield from filter(None, (self._port_trouble, self._gauge_trouble))

    def _render(self, openmetrics: bool) -> str:
        return self.metrics.text(openmetrics=openmetrics)


def tls_context(config: DaemonConfig, keys: Keys) -> ssl.SSLContext:
    """Return TLS with the certificate of the port for users; raise OSError if it cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    own = keys.folder / "server.pem", keys.folder / "server.key"
    context.load_cert_chain(*((config.tls_certificate, config.tls_key) if config.tls_certificate else own))
    return context


def _size_of(folder: Path, *names: str) -> int:
    """Return the size of these files together. A missing file has none."""
    size = 0
    for name in names:
        with suppress(FileNotFoundError):
            size += (folder / name).stat().st_size
    return size
