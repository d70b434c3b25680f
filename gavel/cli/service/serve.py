"""`gavel serve`: run a scheduler."""

from __future__ import annotations

import sys
from typing import Any

import click

from gavel.cli.faults import refusing
from gavel.cli.policies.list import complete_policy
from gavel.cli.policies.plugins import POLICY_FILES


@click.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="A TOML or YAML file of settings.")
@click.option("--data-dir", metavar="DIR", help="The directory of the journal, tokens and keys.")
@click.option("--listen", metavar="HOST:PORT", help="The address for users and their programs.")
@click.option(
    "--policy",
    metavar="SPEC",
    shell_complete=complete_policy,
    help="The policy that divides the GPUs, such as 'las'.",
)
@POLICY_FILES
@click.option("--round-s", metavar="SECONDS", help="The length of a round.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object per line.")
@click.option(
    "--set", "more", multiple=True, metavar="KEY=VALUE", help="Any other setting: keeping.compact=false."
)
def serve(
    path: str | None,
    more: tuple[str, ...],
    policy: str | None,
    policy_files: tuple[str, ...],
    round_s: str | None,
    **flags: Any,
) -> None:
    """Run a scheduler until it is stopped.

    Settings come from the file; GAVEL_SERVE_KEY in the environment overrides it, with two underscores for a dot
    (GAVEL_SERVE_SCHEDULER__ROUND_S), and the options here override both. `gavel config --example` prints all settings.
    On SIGTERM the scheduler stops accepting calls and leaves jobs running.
    """
    from policies.errors import PolicyError
    from protos.files.settings import ConfigError
    from scheduler.live import daemon
    from scheduler.live.config import daemon_config
    from scheduler.live.solver.process import check_policy

    flags |= {"scheduler.policy": policy, "scheduler.round_s": round_s, "policy_files": policy_files or None}
    with refusing(ConfigError, PolicyError):
        config = daemon_config(path, flags, more)
        check_policy(config.scheduler.policy, config.policy_files)
    sys.exit(daemon.serve(config))
