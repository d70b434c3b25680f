"""`gavel up`: a scheduler and a few agents on this machine, to try Gavel."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gavel.cli.policies.list import complete_policy
from gavel.cli.policies.plugins import POLICY_FILES, load_policies
from gavel.cli.service.web import PORT


@click.command()
@click.option(
    "--gpus",
    "agents",
    multiple=True,
    metavar="TYPE=COUNT[:speed=X]",
    help="An agent with these GPUs; may be repeated.  [default: two with a V100, two with a K80]",
)
@click.option(
    "--listen", default="127.0.0.1:7070", show_default=True, metavar="HOST:PORT", help="Where to listen."
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="~/.local/share/gavel-up",
    show_default=True,
    help="The directory for all data, with which the next `gavel up` continues.",
)
@click.option(
    "--policy",
    default="max_min_fairness",
    show_default=True,
    metavar="SPEC",
    shell_complete=complete_policy,
    help="The policy that divides the GPUs.",
)
@POLICY_FILES
@click.option(
    "--round-s", type=click.FloatRange(2), default=30.0, show_default=True, help="The length of a round."
)
@click.option(
    "--web",
    default=f"127.0.0.1:{PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the web page listens; on another port if this one is taken.",
)
@click.option("--no-web", is_flag=True, help="Start no web page.")
def up(
    agents: tuple[str, ...],
    listen: str,
    data_dir: str,
    policy: str,
    policy_files: tuple[str, ...],
    round_s: float,
    web: str,
    no_web: bool,
) -> None:
    """Start a scheduler and a few agents on this machine, to try Gavel.

    They are the real programs; only the GPUs are imaginary. A job that reads GAVEL_SPEED and waits accordingly between
    its steps runs at the speed set for them.
    """
    from gavel.cli.service.local_cluster import AGENTS_DEFAULT, run

    # A fault in a file is reported here, before anything runs.
    if policy_files:
        load_policies(policy_files)
    lead_s = min(2.0, round_s / 5)
    settings = [
        *(f"scheduler.policy={policy}", f"scheduler.round_s={round_s}"),
        *(f"scheduler.solve_lead_s={lead_s}", f"scheduler.plan_lead_s={lead_s / 2}"),
        f"policy_files={json.dumps(policy_files)}",
    ]
    folder, stop_s = Path(data_dir).expanduser(), round_s + 30.0
    run(folder, agents or AGENTS_DEFAULT, listen, settings, stop_s, "" if no_web else web)
