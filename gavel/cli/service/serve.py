"""`gavel serve`: run a scheduler."""

from __future__ import annotations

import sys
from typing import Any

import click

from gavel.cli.faults import refusing
from gavel.cli.policies.list import complete_policy


@click.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="A TOML or YAML file of settings.")
@click.option("--data-dir", metavar="DIR", help="Where journal, tokens and keys are kept.")
@click.option("--listen", metavar="HOST:PORT", help="Where people and their programs reach the scheduler.")
@click.option(
    "--policy",
    metavar="SPEC",
    shell_complete=complete_policy,
    help="Who gets how much, such as 'las'.",
)
@click.option("--round-s", metavar="SECONDS", help="How long a round is.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object per line.")
@click.option(
    "--set", "more", multiple=True, metavar="KEY=VALUE", help="Any other setting: keeping.compact=false."
)
def serve(
    path: str | None, more: tuple[str, ...], policy: str | None, round_s: str | None, **flags: Any
) -> None:
    """Run a scheduler until it is told to stop.

    Settings come from the file, over them GAVEL_SERVE_KEY in the environment, with two underscores for a dot
    (GAVEL_SERVE_SCHEDULER__ROUND_S), over that the options here.
    `gavel config --example` prints all there are. On SIGTERM it stops taking calls and leaves jobs running.
    """
    from policies.errors import PolicyError
    from policies.registry import resolve
    from protos.files.settings import ConfigError
    from scheduler.live import daemon
    from scheduler.live.config import daemon_config

    flags |= {"scheduler.policy": policy, "scheduler.round_s": round_s}
    with refusing(ConfigError, PolicyError):
        config = daemon_config(path, flags, more)
        resolve(config.scheduler.policy)
    sys.exit(daemon.serve(config))
