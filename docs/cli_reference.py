"""Writes docs/cli.md, the fields of jobs in docs/job-file.md and for `gavel submit`, the limits in docs/operations.md.

`python -m docs.cli_reference`; a test keeps them fresh.
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
from gavel.client.jobs.spec import FIELDS, After, JobSpec
from scheduler.model import bounds

DOCS = Path(__file__).parent
# Fields of job files that no option gives: they stand behind --.
NO_OPTION = ("command", "script")
FIELD_TABLE = '''"""The fields of a job file that are options of `gavel submit`: name, kind and meaning.

Made from `JobSpec` by `python -m docs.cli_reference`; a test checks that it is up to date. `gavel submit --help` reads
this table because importing `JobSpec` takes 5 ms.
"""

# fmt: off
FIELDS = (
'''
BEGIN, END = "<!-- begin: made by docs/cli_reference.py -->", "<!-- end -->"

INTRODUCTION = """# The `gavel` command

Made by `python -m docs.cli_reference` from the command itself; a test checks that it is fresh.

    gavel COMMAND --help

**Which scheduler.** Commands that speak to a scheduler find it by `--address`, else `--context`, else `GAVEL_ADDRESS`,
else the context in use (`gavel login` stores one, `gavel context` lists them), else on this machine at
`127.0.0.1:7070`. The token comes from `GAVEL_TOKEN` or the context, the CA certificate from `GAVEL_CA` or the context.
A scheduler on another machine is only spoken to over TLS.

**For people and for programs.** Tables are cut to the width of a terminal and never elsewhere; colours are for
terminals, and not where `NO_COLOR` is set. Times are relative. Results go to standard output, remarks and errors to
standard error, errors as one line.

**`--json`** prints JSON in place of words and tables, on standard output; every command that prints a result has it.
`simulate` and `replay` take the name of a file there, too: `--json FILE`. What streams (`queue --watch`, `logs`,
`wait`, `show`) prints one JSON object per line. Nothing is cut. Moments are ISO 8601 in UTC; numbers of seconds are
lengths of time, or moments of a simulation or journal, whose clock has no date.

**A scheduler that does not answer** is tried for 3 s, by commands that change something for 15 s; that, and where it is
expected, is said at once. `queue --watch`, `top` and `logs --follow` wait until it is back and go on, as `--json` too:
`queue --watch` then begins anew with what is there. `wait` gives up after 10 minutes.

## Exit codes

They are stable.

| code | meaning |
|---|---|
| 0 | done |
| 1 | a job that was waited for did not succeed; `doctor`, `fsck` or `status --check` found something |
| 2 | wrong input: an option, a job file, a job that can never run |
| 3 | there is no such job, node, token or context |
| 4 | no scheduler answers, or it has a fault |
| 5 | it does not know you, or your role does not allow it |
| 6 | refused as things stand: in the wrong state, a key that was used, too much at once, not over in time |
| 130 | interrupted by Ctrl-C |

Of a command over several jobs or nodes, the first failure decides; the others are still done.
"""

# command → what --json prints
JSON: dict[str, tuple[str, Any]] = {
    "queue": (
        "a list of jobs, without launch, labels, rates and last lines; with `--watch` lines of",
        r.JobEvent,
    ),
    "show": ("a line for each job", r.Job),
    "wait": ("a line for each job that has ended", r.Job),
    "logs": ("lines of", r.LogChunk),
    "submit": (
        '`{"jobs": [ids]}` on a line; with `--wait` a line for each job; with `--dry-run` a list of',
        r.Preview,
    ),
    "nodes": ("a list of", r.Node),
    "usage": ("a list of", r.UsageRow),
    "policy get": ("`policy`, `available` and `allocation`:", r.Allocation),
    "policy set": ("", r.Policy),
    "status": ("`address`, `identity` and `status`:", r.Status),
    "explain": ("[explain.md](explain.md) has the keys; of an array a list", None),
    "doctor": ("`sound` and `findings`, a list with `level`, `what` and `remedy`", None),
    "token create": ("", r.NewToken),
    "token list": ("a list of", r.Token),
    "token revoked": ("a list of", r.NodeRevocation),
    "token join": ("", r.JoinToken),
    "policy": ("as of `policy get`:", r.Allocation),
    "top": (
        "one picture: `at`, `status`, `nodes`, `waiting` (how many in all) and `jobs`, as of `queue`:",
        r.Job,
    ),
    "context": ("a list with `name`, `current`, `address` and `ca`", None),
    "login": ("`name`, `address`, `ca` and `identity`:", r.Identity),
    "init": (
        "`keys`, `ca_fingerprint`, `settings`, `address`, `ca`, `user`, `role`, `expires`, and `token` or "
        "`token_file`; with `--token` the last four, with `--renew` `certificate` and `expires`",
        None,
    ),
    "config": ("of a file that is right: `file`, `of` (`scheduler` or `agent`) and `right`", None),
    "agent join": ("`node`, `certificates` and `agents_address`", None),
    "backup": ("`archive`, `size_bytes` and `made_by`, the scheduler's address or null", None),
    "restore": ("`data_dir` and `records`", None),
    "fsck": ("as of `doctor`", None),
    "allocate": ("[problem-format.md](problem-format.md) has the keys", None),
    "policies": ("a list of what the table has", None),
    "simulate": ("[simulation.md](simulation.md#the-figures) has the keys", None),
    "replay": ("the figures of the replay, as of `simulate`", None),
    "sweep": (
        "`runs`, a list with `policy`, `rate_per_h`, `seed`, `cluster`, and `figures` (as of `simulate`) or `failed`",
        None,
    ),
    "compare": ("`a` and `b`, as they were given, and `ratio`, by figure", None),
    "generate": ("`file`, `jobs` and `last_arrival_s`, from the first moment of the trace", None),
}
# prints nothing for programs, and why
NO_JSON = {
    **dict.fromkeys(("serve", "agent", "up"), "runs until it is told to stop; --log-json is what it has"),
    "completion": "prints a program for the shell",
    "token": "only a name for those below it",
}
CHANGES = {
    **dict.fromkeys(("cancel", "hold", "release", "requeue"), "`jobs` (ids that it concerned)"),
    **dict.fromkeys(("drain", "resume", "remove"), "`nodes`"),
    "token revoke": "`tokens`, `nodes` ([RevokedNode](#revokednode))",
    "token unrevoke": "`nodes` (their names)",
}
SHAPES = (
    *(
        r.Job,
        JobSpec,
        After,
        r.Placement,
        r.JobEvent,
        r.LogChunk,
        r.Preview,
        r.Place,
        r.Node,
        r.Gpu,
        r.UsageRow,
    ),
    *(r.Status, r.Identity, r.Allocation, r.Share, r.Policy, r.Token, r.NewToken, r.JoinToken, r.RevokedNode),
    r.NodeRevocation,
)


def reference() -> str:
    """The page."""
    parts = [INTRODUCTION, "## Commands\n"]
    parts += [_section(name, command) for name, command in _commands(main, "")]
    parts += [
        "## Keys of JSON\n",
        "New keys may come; those that are here stay, with their meaning.\n",
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
    """Only what a reader would not guess."""
    for part in (hint, *get_args(hint)):
        if is_dataclass(part) and part in SHAPES:
            return f" ({_link(part)})"
    return ""


def job_fields() -> str:
    """The table of the fields of a job file."""
    rows = [
        f"| `{field.name}` | {field.kind} | {_cell(field.meaning)} | `{field.example}` |" for field in FIELDS
    ]
    return "\n".join(["| field | kind | meaning | example |", "|---|---|---|---|", *rows])


def submit_fields() -> str:
    """The fields that are options of `gavel submit`, each with its kind and the first statement of its meaning."""
    rows = [
        json.dumps([field.name, field.kind, re.split("; |[.] ", field.meaning)[0]], ensure_ascii=False)
        for field in FIELDS
        if field.name not in NO_OPTION
    ]
    return FIELD_TABLE + "".join(f"    ({row[1:-1]}),\n" for row in rows) + ")\n"


def limits() -> str:
    """The table of what numbers are possible."""
    rates = {"steps_per_s": bounds.TABLE_RATE, "price_per_gpu_hour": bounds.PRICE}
    reports = {"steps": bounds.REPORT_STEPS, "times": bounds.REPORT_S}
    of_jobs = {**bounds.JOB, "rates": bounds.RATE}
    of_settings = {**bounds.SETTINGS, "speed": bounds.FACTOR, "tenants.weight": bounds.WEIGHT}
    tables: list[tuple[str, bounds.Table]] = [
        ("a job", of_jobs),
        ("a job", bounds.LAUNCH),
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
    """docs/job-file.md with the table as it should be, or another page with its own."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table or job_fields()}\n\n{END}{rest.split(END)[1]}"


def write() -> None:
    """All of these, first what the command itself shows."""
    (DOCS.parent / "gavel/cli/jobs/field_table.py").write_text(submit_fields(), encoding="utf-8")
    (DOCS / "cli.md").write_text(reference(), encoding="utf-8")
    for name, table in (("job-file.md", job_fields()), ("operations.md", limits())):
        page = DOCS / name
        page.write_text(with_table(page.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    write()
