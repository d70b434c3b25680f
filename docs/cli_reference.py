"""Write the generated parts of the documentation: run `python -m docs.cli_reference`.

These are docs/cli.md, the table of fields in docs/job-file.md, the table of limits in docs/operations.md, and
gavel/cli/jobs/field_table.py, from which `gavel submit --help` describes the fields. A test checks that all of them are
up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from gavel.cli.main import main
from gavel.client import results as r
from gavel.client.jobs.spec import FIELDS, After, JobSpec, Notify
from scheduler.model import bounds

DOCS = Path(__file__).parent
# Fields of job files without an option of `gavel submit`, which takes a command after `--`.
NO_OPTION = ("command", "script")
FIELD_TABLE = '''"""The fields of a job file that are options of `gavel submit`: name, kind and meaning.

Made from `JobSpec` by `python -m docs.cli_reference`; a test checks that it is up to date. `gavel submit --help` reads
this table because importing `JobSpec` takes 5 ms.
"""

# fmt: off
FIELDS = (
'''
# The lines around a generated table of a page that is otherwise written by hand.
BEGIN, END = "<!-- begin: made by docs/cli_reference.py -->", "<!-- end -->"

INTRODUCTION = """# The `gavel` command

This page is written by `python -m docs.cli_reference` from the help of the commands; a test checks that it is up to
date.

    gavel COMMAND --help

**Which scheduler.** Commands that need a scheduler take its address from `--address`, else from `--context`, else from
`GAVEL_ADDRESS`, else from the context in use (`gavel login` stores a context, `gavel context` lists all). If none of
these is set, the address is `127.0.0.1:7070`, on this machine. The token comes from `GAVEL_TOKEN` or the context, the
CA certificate from `GAVEL_CA` or the context. Commands connect to a scheduler on another machine only over TLS.

**Output.** Results go to standard output; remarks and errors go to standard error, each error as one line. On a
terminal, tables are cut to its width and have colours, unless `NO_COLOR` is set; files and pipes get whole tables
without colours. Most times are relative to now.

**`--json`** prints JSON on standard output instead of words and tables; every command that prints a result has this
option. For `simulate` and `replay`, the name of a file may follow: `--json FILE`. Commands whose output is a stream
(`queue --watch`, `logs`, `wait`, `show`) print one JSON object per line. Nothing is cut. Points in time are ISO 8601 in
UTC. Numbers of seconds are durations, or times of a simulation or a journal, whose clock has no date.

**If no scheduler answers**, a command tries again for 3 s, or for 15 s if it changes something. It prints at once that
it is waiting, and for which address. `queue --watch`, `top` and `logs --follow` wait until the scheduler is back, and
then continue, also with `--json`; `queue --watch` then first prints all jobs again. `wait` gives up after 10 minutes.

## Exit codes

Exit codes keep their meaning in all releases.

| code | meaning |
|---|---|
| 0 | done |
| 1 | a job that was waited for did not succeed; `doctor`, `fsck` or `status --check` found something |
| 2 | wrong input: an option, a job file, a job that can never run |
| 3 | there is no such job, node, token or context |
| 4 | no scheduler answers, or the scheduler failed on the request |
| 5 | the scheduler does not accept your token, or your role does not allow the command |
| 6 | refused at present: a job or node in the wrong state, a used key, too many calls or jobs, or `wait` timed out |
| 130 | interrupted by Ctrl-C |

A command that acts on several jobs or nodes continues after a failure; the first failure decides its exit code.
"""

# What `--json` prints, by command: words for the page, and the class of the JSON objects if `SHAPES` has it.
JSON: dict[str, tuple[str, Any]] = {
    "queue": (
        "a list of jobs, without launch, labels, rates and last lines; with `--watch` lines of",
        r.JobEvent,
    ),
    "show": (
        "a line for each job: [Job](#job); with `--timeline`, its `job` and `leases`:",
        r.LeaseRecord,
    ),
    "probe": (
        "`busy`, `prep` and `fetch`, which add up to 1; `what_if`, a list of single changes with `change` (`cpus`, "
        "`cache` or `disk`), `to`, `rate` and `speedup`; `best`, the one that helps most, or null; the measured "
        "`rates` in steps per second; `steps`, `loading`, `workers`, `cpus`, `cpu_scaling`, `cache_needed`; and how "
        "`cold` reading was",
        None,
    ),
    "wait": ("a line for each job that has ended:", r.Job),
    "logs": ("lines of", r.LogChunk),
    "fetch": (
        "a line for each job, with the files that were fetched, those that were `present`, and `problems`; with "
        "`--list` a line for each node:",
        r.FileList,
    ),
    "submit": (
        '`{"jobs": [ids]}` on a line; with `--wait` a line for each job; with `--dry-run` a list of',
        r.Preview,
    ),
    "nodes": ("a list of", r.Node),
    "usage": (
        "with `--kind`, and by type, node or day, a list of [`GpuTimeRow`](#gputimerow); otherwise a list of",
        r.UsageRow,
    ),
    "shares": ("", r.Shares),
    "matrix": ("a list of", r.MatrixRow),
    "rounds": ("a list of", r.RoundRecord),
    "leases": ("a list of", r.LeaseRecord),
    "policy get": ("`policy`, `available` and `allocation`:", r.Allocation),
    "policy set": ("", r.Policy),
    "tenant list": ("a list of", r.Tenant),
    "tenant show": ("a list of", r.Tenant),
    "tenant set": ("", r.Tenant),
    "tenant remove": ("`removed`, a list of names", None),
    "status": ("`address`, `identity` and `status`:", r.Status),
    "explain": ("[explain.md](explain.md) has the keys; for an array, a list of these objects", None),
    "doctor": ("`sound` and `findings`, a list with `level`, `what` and `remedy`", None),
    "notify list": ("a list of", r.Channel),
    "notify test": ("`channel`, and `error`: why it was not confirmed, or empty", None),
    "token create": ("", r.NewToken),
    "token list": ("a list of", r.Token),
    "token revoked": ("a list of", r.NodeRevocation),
    "token join": ("", r.JoinToken),
    "policy": ("as for `policy get`:", r.Allocation),
    "top": (
        "the screen once: `at`, `status`, `nodes`, `waiting` (the number of waiting jobs) and `jobs`, as for `queue`:",
        r.Job,
    ),
    "context": ("a list with `name`, `current`, `address` and `ca`", None),
    "login": ("`name`, `address`, `ca` and `identity`:", r.Identity),
    "init": (
        "`keys`, `ca_fingerprint`, `settings`, `address`, `ca`, `user`, `role`, `expires`, and `token` or "
        "`token_file`; with `--token` only `user`, `role`, `expires`, and `token` or `token_file`; "
        "with `--renew` only `certificate` and `expires`",
        None,
    ),
    "config": ("for a valid file: `file`, `of` (`scheduler` or `agent`), and `right`, which is true", None),
    "agent join": ("`node`, `certificates` and `agents_address`", None),
    "backup": ("`archive`, `size_bytes` and `made_by`, the scheduler's address or null", None),
    "restore": ("`data_dir` and `records`", None),
    "fsck": ("as for `doctor`", None),
    "allocate": ("[problem-format.md](problem-format.md) has the keys", None),
    "policies": ("a list with the contents of the table", None),
    "policies list": ("a list with the contents of the table", None),
    "policies check": ("for each policy, `promises`, `properties` and `broken`, the small problems", None),
    "simulate": ("[simulation.md](simulation.md#the-figures) has the keys", None),
    "replay": ("the figures of the replay, as for `simulate`", None),
    "sweep": (
        "`runs`, a list with `policy`, `rate_per_h`, `seed`, `cluster`, and `figures` (as for `simulate`) or `failed`",
        None,
    ),
    "compare": ("`a` and `b`, as they were given, and `ratio`, by figure", None),
    "plan": ("[plans.md](plans.md#as-json) has the keys", None),
    "generate": ("`file`, `jobs`, and `last_arrival_s`, counted from the start of the trace", None),
}
# The commands without `--json`, each with the reason.
NO_JSON = {
    **dict.fromkeys(("serve", "agent", "up", "web"), "runs until it is stopped; it has --log-json instead"),
    **dict.fromkeys(("run", "attach", "shell"), "its output is that of the job's program"),
    "completion": "prints a program for the shell",
    **dict.fromkeys(("token", "tenant", "notify"), "does nothing itself: only its subcommands do"),
    "profile": "its file is JSON",
}
# The commands that change jobs, nodes or tokens: the key of their JSON that lists what they changed.
CHANGES = {
    **dict.fromkeys(
        ("cancel", "hold", "release", "requeue", "update"), "`jobs` (the ids of the changed jobs)"
    ),
    **dict.fromkeys(("drain", "resume", "remove"), "`nodes`"),
    "token revoke": "`tokens`, `nodes` ([RevokedNode](#revokednode))",
    "token unrevoke": "`nodes` (their names)",
}
# The classes whose fields the page lists as keys of JSON.
SHAPES = (
    *(
        r.Job,
        JobSpec,
        After,
        Notify,
        r.Placement,
        r.JobEvent,
        r.LogChunk,
        r.FileList,
        r.FilePlaces,
        r.FileEntry,
        r.Preview,
        r.Place,
        r.Node,
        r.Gpu,
        r.UsageRow,
    ),
    *(r.LeaseRecord, r.Shares, r.Account, r.RoundRecord, r.MatrixRow, r.MatrixCell),
    *(r.GpuTimeRow, r.WholeTime),
    *(r.Status, r.Channel, r.Identity, r.Allocation, r.Share, r.Policy),
    *(r.Token, r.NewToken, r.JoinToken, r.RevokedNode),
    *(r.Tenant, r.Quota, r.Limit),
    r.NodeRevocation,
)


def reference() -> str:
    """Return the page docs/cli.md."""
    parts = [INTRODUCTION, "## Commands\n"]
    parts += [_section(name, command) for name, command in _commands(main, "")]
    parts += [
        "## Keys of JSON\n",
        "Releases may add keys; the keys listed here stay, with their meaning.\n",
    ]
    parts += [_shape(shape) for shape in SHAPES]
    return "\n".join(parts).rstrip() + "\n"


def _commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix}{name} ")


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"gavel {name}", help_option_names=[])
    usage = " ".join(command.collect_usage_pieces(context))
    help_text = re.sub(r"(?m)^ +", "", (command.help or "").strip())
    lines = [f"### gavel {name}\n", f"    gavel {name} {usage}\n", f"{help_text}\n"]
    rows = [
        row for option in command.get_params(context) if (row := option.get_help_record(context)) and row[1]
    ]
    if rows:
        lines += ["| option | |", "|---|---|"]
        lines += [f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in rows]
        lines.append("")
    if name in JSON:
        words, shape = JSON[name]
        lines.append(
            f"`--json`: {words} {_link(shape) if shape else ''}".replace(":  ", ": ").rstrip() + ".\n"
        )
    elif name in CHANGES:
        lines.append(f"`--json`: {CHANGES[name]}, and `failed`, a list with `reason` and `message`.\n")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _link(shape: Any) -> str:
    return f"[{shape.__name__}](#{shape.__name__.lower()})"


def _shape(shape: Any) -> str:
    hints = get_type_hints(shape)
    keys = [f"`{one.name}`{_kind(hints[one.name])}" for one in fields(shape) if one.name != "source"]
    return f"### {shape.__name__}\n\n{(shape.__doc__ or '').strip().splitlines()[0]}\n\n{', '.join(keys)}\n"


def _kind(hint: Any) -> str:
    """Return a link to the class of a field's values, if the page describes it; otherwise nothing."""
    for part in (hint, *get_args(hint)):
        if is_dataclass(part) and part in SHAPES:
            return f" ({_link(part)})"
    return ""


def job_fields() -> str:
    """Return the table of the fields of a job file."""
    rows = [
        f"| `{field.name}` | {field.kind} | {_cell(field.meaning)} | `{field.example}` |" for field in FIELDS
    ]
    return "\n".join(["| field | kind | meaning | example |", "|---|---|---|---|", *rows])


def submit_fields() -> str:
    """Return a Python module with the fields that are options of `gavel submit`.

    It has the name and kind of each field, and the first sentence of its meaning.
    """
    rows = [
        json.dumps([field.name, field.kind, re.split("; |[.] ", field.meaning)[0]], ensure_ascii=False)
        for field in FIELDS
        if field.name not in NO_OPTION
    ]
    return FIELD_TABLE + "".join(f"    ({row[1:-1]}),\n" for row in rows) + ")\n"


def limits() -> str:
    """Return the table of the limits of all numbers."""
    rates = {"steps_per_s": bounds.TABLE_RATE, "price_per_gpu_hour": bounds.PRICE}
    reports = {"steps": bounds.REPORT_STEPS, "times": bounds.REPORT_S}
    of_jobs = {**bounds.JOB, "rates": bounds.RATE}
    of_settings = {
        **bounds.SETTINGS,
        "speed": bounds.FACTOR,
        "tenants.weight": bounds.WEIGHT,
        "tenants.quota.gpus": bounds.QUOTA_GPUS,
        "tenants.quota.gpu_hours": bounds.QUOTA_SPENT,
        "tenants.quota.cost": bounds.QUOTA_SPENT,
    }
    tables: list[tuple[str, bounds.Table]] = [
        ("a job", of_jobs),
        ("a job", bounds.LAUNCH),
        ("a terminal", bounds.TERMINAL),
        ("a node", bounds.NODE),
        ("a report of a node", reports),
        ("rates and prices", rates),
        ("`scheduler`", of_settings),
        ("`people`", bounds.PEOPLE),
        ("`agents`", bounds.AGENTS),
        ("`keeping`", bounds.KEEPING),
        ("the daemon", bounds.DAEMON),
    ]
    rows = []
    for what, table in tables:
        by_bound: dict[bounds.Bound, list[str]] = {}
        for field, bound in table.items():
            by_bound.setdefault(bound, []).append(f"`{field}`")
        rows += [f"| {what} | {', '.join(names)} | {bound} |" for bound, names in by_bound.items()]
    return "\n".join(["| of | fields | possible |", "|---|---|---|", *rows])


def with_table(page: str, table: str = "") -> str:
    """Return a page with this table between its markers. By default it is the table of docs/job-file.md."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table or job_fields()}\n\n{END}{rest.split(END)[1]}"


def write() -> None:
    """Write all files. field_table.py is first, because docs/cli.md is made from the help that reads it."""
    (DOCS.parent / "gavel/cli/jobs/field_table.py").write_text(submit_fields(), encoding="utf-8")
    (DOCS / "cli.md").write_text(reference(), encoding="utf-8")
    for name, table in (("job-file.md", job_fields()), ("operations.md", limits())):
        page = DOCS / name
        page.write_text(with_table(page.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    write()
