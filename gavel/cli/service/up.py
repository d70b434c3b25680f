"""`gavel up`: a scheduler and a few agents on this machine, for trying things."""

from __future__ import annotations

from pathlib import Path

import click

from gavel.cli.policies.list import complete_policy


@click.command()
@click.option(
    "--gpus",
    "agents",
    multiple=True,
    metavar="TYPE=COUNT[:speed=X]",
    help="An agent with these GPUs; again for another one.  [default: two with a V100, two with a K80]",
)
@click.option("--listen", default="127.0.0.1:7070", show_default=True, metavar="HOST:PORT", help="Where.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="~/.local/share/gavel-up",
    show_default=True,
    help="Where everything is kept, so that the next `gavel up` goes on.",
)
@click.option(
    "--policy",
    default="max_min_fairness",
    show_default=True,
    metavar="SPEC",
    shell_complete=complete_policy,
    help="Who gets how much.",
)
@click.option(
    "--round-s", type=click.FloatRange(2), default=30.0, show_default=True, help="How long a round is."
)
def up(agents: tuple[str, ...], listen: str, data_dir: str, policy: str, round_s: float) -> None:
    """Start a scheduler and a few agents on this machine, for trying things.

    They are the real programs; only the GPUs are declared, and jobs that pace their steps run at their speed.
    """
    from gavel.cli.service.local_cluster import AGENTS_DEFAULT, run

    lead_s = min(2.0, round_s / 5)
    settings = [
        *(f"scheduler.policy={policy}", f"scheduler.round_s={round_s}"),
        *(f"scheduler.solve_lead_s={lead_s}", f"scheduler.plan_lead_s={lead_s / 2}"),
    ]
    run(Path(data_dir).expanduser(), agents or AGENTS_DEFAULT, listen, settings, stop_s=round_s + 30.0)
