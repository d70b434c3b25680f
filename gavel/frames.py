"""Gavel's figures as pandas DataFrames: results, sweeps, jobs, usage, and the leases and facts of journals.

Units are at the end of a column's name: `_h` hours, `_s` seconds, `_usd` US dollars, `_per_h` per hour. Values by
worker type have a column per type, such as `received_h:h100`. docs/frames.md describes every column.
"""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gavel.client.results import UsageRow
from scheduler.core import facts as f
from scheduler.journal.errors import Damage
from scheduler.journal.record import Record
from scheduler.journal.store import SqliteJournal
from scheduler.model.lease import Lease
from scheduler.sim.figures.job_table import FIELDS, HOUR_S
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.figures.summary import INTERRUPTED, KEYS

try:
    import pandas as pd
except ImportError:
    raise ImportError("gavel.frames needs pandas: pip install 'gavel-scheduler[frames]'") from None

# Separates the name of a column from a part of its value, as in `received_h:h100`.
SEP = ":"
# The first bytes of a journal.
SQLITE = b"SQLite format 3\0"
JOB_DTYPES = {
    **dict.fromkeys(FIELDS, "float64"),
    **dict.fromkeys(("id", "name", "type", "state", "plans"), "str"),
    **dict.fromkeys(("number", "gpus", "preemptions"), "int64"),
    "deadline_missed": "boolean",
}
JOB_COLUMNS = (*FIELDS, "received_h", "allocated_h")
LEASE_COLUMNS = (
    *("lease", "job", "attempt", "epoch", "round", "worker_type", "gpus", "plan", "gpu_ids", "with_job"),
    *("granted_h", "started_h", "closed_h", "outcome", "lapsed", "steps", "saved", "ran_h", "stepping_h"),
)
FACT_COLUMNS = ("record", "now_s", "at_h", "fact", "job", "node", "lease", "fields")
USAGE_COLUMNS = tuple(field.name for field in dataclasses.fields(UsageRow))


def results(*files: str | Path) -> pd.DataFrame:
    """Return a row per file that `gavel simulate --json` or `gavel replay --json` wrote, in the order of `files`.

    The column `file` is the file's name; the other columns are the figures of docs/simulation.md. `interrupted` marks
    runs that were stopped early, whose figures end when the run was stopped.
    """
    rows = []
    for file in files:
        figures = _figures_in(_content(Path(file)))
        if figures is None:
            raise ValueError(f"{file}: not a result of `gavel simulate --json`")
        rows.append({"file": str(file), **_row_of(figures), INTERRUPTED: bool(figures.get(INTERRUPTED))})
    return _in_order(pd.json_normalize(rows, sep=SEP), ["file", *KEYS, INTERRUPTED])


def sweep(directory: str | Path) -> pd.DataFrame:
    """Return a row per finished run in the directory that `gavel sweep --results` filled.

    `rate_per_h` comes first, then the figures of docs/simulation.md. Any other option that differs from its default in
    at least one run has a column `run:…`.
    """
    rows = []
    for path in Path(directory).glob("*.json"):
        content = _content(path)
        figures = _figures_in(content)
        if figures is None or "run" not in content:
            continue
        options = {key: value for key, value in content["run"].items() if key not in figures or key == "jobs"}
        rate_per_h = float(options.pop("rate_per_h", math.nan))
        rows.append({"rate_per_h": rate_per_h, **_row_of(figures), "run": options})
    if not rows:
        raise ValueError(f"{directory}: no finished run of `gavel sweep` in it")
    frame = _in_order(pd.json_normalize(rows, sep=SEP), ["rate_per_h", *KEYS, "run"])
    return frame.sort_values(["cluster", "rate_per_h", "policy", "seed"], ignore_index=True)


def _content(path: Path) -> Any:
    """Return the content of a JSON file; None if it is not JSON, because a run was killed while writing it."""
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def _figures_in(content: Any) -> Mapping[str, Any] | None:
    """Return the figures in the result of a simulation or in a run of a sweep; None if the content is neither."""
    figures = content.get("figures", content) if isinstance(content, dict) else None
    return figures if isinstance(figures, dict) and set(KEYS) <= set(figures) else None


def _row_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures as a row, with the cluster as text, `v100=4,h100=4`, so that rows can be grouped by it."""
    row = {key: figures[key] for key in KEYS}
    row["cluster"] = ",".join(f"{kind}={gpus}" for kind, gpus in (figures["cluster"] or {}).items())
    return row


def _in_order(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the frame with its columns in the order of these names. `a:x` and `a:y` come in the place of `a`."""
    return frame[sorted(frame.columns, key=lambda column: names.index(str(column).partition(SEP)[0]))]


def jobs(source: str | Path) -> pd.DataFrame:
    """Return a row per job, from a file that `gavel simulate --jobs-csv` wrote or from a journal.

    In both cases the columns are those of docs/simulation.md. From a journal, every job has a row, and times count
    from the first record.
    """
    with open(source, "rb") as file:
        is_journal = file.read(len(SQLITE)) == SQLITE
    if is_journal:
        return _jobs_of_journal(source)
    empty_values = {name: [""] for name, dtype in JOB_DTYPES.items() if dtype != "str"}
    header = pd.read_csv(source, nrows=0)
    missing = [name for name in FIELDS if name not in header and name != "plans"]
    if missing:
        raise ValueError(
            f"{source}: no column '{missing[0]}'; expected a file of `gavel simulate --jobs-csv`"
        )
    rows = pd.read_csv(
        source,
        dtype=JOB_DTYPES,
        # A job may be called "NA" or "null".
        keep_default_na=False,
        na_values=empty_values,
    )
    # Release 0.1.0 wrote no plans.
    return rows if "plans" in rows else _in_order(rows.assign(plans=""), JOB_COLUMNS)


def _jobs_of_journal(path: str | Path) -> pd.DataFrame:
    metrics = Metrics()
    for record, at_s in _records(path):
        metrics.observe_all(at_s, record.facts)
    metrics.settle()
    by_type = [
        f"{field}{SEP}{kind}" for field in ("received_h", "allocated_h") for kind in metrics.jobs.worker_types
    ]
    rows = pd.json_normalize(list(metrics.jobs.rows(metrics.now_s)), sep=SEP)
    return rows.reindex(columns=[*FIELDS, *by_type]).astype(JOB_DTYPES)


def leases(journal: str | Path) -> pd.DataFrame:
    """Return a row per lease of a journal: which job had which GPUs, from when to when, and how it ended.

    `started_h` is missing if the lease never started, `closed_h` if it is still open.
    """
    rows: dict[str, dict[str, Any]] = {}
    for record, at_s in _records(journal):
        at_h = at_s / HOUR_S
        for fact in record.facts:
            match fact:
                case f.RoundPlanned() | f.GpusFilled():
                    rows.update({lease.id: _granted(lease, at_h) for lease in fact.granted})
                case f.LeasesStarted():
                    for name in fact.leases:
                        rows.get(name, {}).setdefault("started_h", at_h)
                case f.LeaseRecalled() if fact.untold:
                    rows.get(fact.lease, {}).update(closed_h=at_h)
                case f.LeaseClosed():
                    rows.get(fact.exit.lease, {}).update(_closed(fact, at_h))
    hours = {name: "float64" for name in LEASE_COLUMNS if name.endswith("_h")}
    dtypes = {**hours, "lapsed": "boolean", "steps": "float64", "saved": "float64"}
    return pd.DataFrame(list(rows.values()), columns=pd.Index(LEASE_COLUMNS)).astype(dtypes)


def _granted(lease: Lease, at_h: float) -> dict[str, Any]:
    return {
        "lease": lease.id,
        "job": lease.job,
        "attempt": lease.attempt,
        "epoch": lease.epoch,
        "round": lease.round_number,
        "worker_type": lease.bundle.worker_type,
        "gpus": len(lease.gpus),
        "plan": lease.bundle.label,
        "gpu_ids": lease.gpus,
        "with_job": next((job for job in lease.bundle.jobs if job != lease.job), ""),
        "granted_h": at_h,
        "outcome": "",
    }


def _closed(fact: f.LeaseClosed, at_h: float) -> dict[str, Any]:
    end = fact.exit
    return {
        "closed_h": at_h,
        "outcome": end.outcome,
        "lapsed": fact.lapsed,
        "steps": end.steps,
        "saved": end.saved,
        "ran_h": end.ran_s / HOUR_S,
        "stepping_h": end.stepping_s / HOUR_S,
    }


def facts(journal: str | Path, *kinds: str) -> pd.DataFrame:
    """Return a row per fact of a journal, or per fact of these kinds, such as "JobMoved" (scheduler/core/facts.py).

    The column `fields` has each fact's fields as plain data, except those with their default value.
    """
    rows = [
        {
            "record": record.seq,
            "now_s": record.now_s,
            "at_h": at_s / HOUR_S,
            "fact": type(fact).__name__,
            "job": getattr(fact, "job", ""),
            "node": getattr(fact, "node", ""),
            "lease": getattr(fact, "lease", "") or getattr(getattr(fact, "exit", None), "lease", ""),
            "fields": {key: value for key, value in msgspec.to_builtins(fact).items() if key != "type"},
        }
        for record, at_s in _records(journal)
        for fact in record.facts
        if not kinds or type(fact).__name__ in kinds
    ]
    return pd.DataFrame(rows, columns=pd.Index(FACT_COLUMNS))


def _records(path: str | Path) -> Iterator[tuple[Record, float]]:
    """Yield each sound record of a journal with its seconds since the first record; warn about missing records."""
    start_s: float | None = None
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such journal")
    with SqliteJournal(path, read_only=True) as journal:
        if journal.repair_reason:
            warnings.warn(f"{path}: the file is damaged ({journal.repair_reason})", stacklevel=2)
        for item in journal.scan():
            if isinstance(item, Damage):
                warnings.warn(
                    f"{path}: records {item.first} to {item.last} are missing: {item.why}", stacklevel=2
                )
                continue
            start_s = item.now_s if start_s is None else start_s
            yield item, item.now_s - start_s


def usage(rows: str | Path | Iterable[UsageRow]) -> pd.DataFrame:
    """Return a row per user, tenant or job type, from `Client.usage()` or a file that `gavel usage --json` wrote.

    `gpu_s:TYPE` is 0 if the type was not used.
    """
    if isinstance(rows, str | Path):
        plain: Sequence[dict[str, Any]] = json.loads(Path(rows).read_bytes())
    else:
        plain = [dataclasses.asdict(row) for row in rows]
    if not plain:
        return pd.DataFrame(columns=[name for name in USAGE_COLUMNS if name != "gpu_s"])
    frame = _in_order(pd.json_normalize(list(plain), sep=SEP), USAGE_COLUMNS)
    by_type = [name for name in frame.columns if name.startswith(f"gpu_s{SEP}")]
    return frame.fillna(dict.fromkeys(by_type, 0.0))
