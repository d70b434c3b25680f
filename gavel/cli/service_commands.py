"""Commands of the service: their options, and nothing yet of how it is done. COMMANDS lists those of all files."""

from __future__ import annotations

import sys
from typing import Any

import click

from gavel.cli import Fault, cluster_commands, complete_policy, job_commands


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

    Settings come from the file, over them GAVEL_SERVE_KEY in the environment, over that the options here.
    `gavel config --example` prints all there are. On SIGTERM it stops taking calls and leaves jobs running.
    """
    from policies.errors import PolicyError
    from policies.registry import resolve
    from scheduler.config import ConfigError
    from scheduler.live.daemon_config import daemon_config
    from scheduler.live.serve import serve as run

    flags |= {"scheduler.policy": policy, "scheduler.round_s": round_s}
    try:
        config = daemon_config(path, flags, more)
        resolve(config.scheduler.policy)
    except (ConfigError, PolicyError) as error:
        raise Fault(str(error)) from None
    sys.exit(run(config))


@click.command()
@click.option("--example", is_flag=True, help="Print a file with every setting, its meaning and its default.")
@click.option("--check", "path", type=click.Path(), metavar="FILE", help="Say whether a file is right.")
@click.option("--agent", is_flag=True, help="Of an agent instead of the scheduler.")
def config(example: bool, path: str | None, agent: bool) -> None:
    """Show or check the settings of a scheduler."""
    from gavel.cli.config import check, show

    if path:
        check(path, agent)
    elif example:
        show(agent)
    else:
        raise Fault("say --example or --check FILE")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address by which people and nodes reach this machine; may be given several times.",
)
@click.option("--user", metavar="NAME", help="Whom the first token is for.  [default: you]")
@click.option(
    "--port", type=click.IntRange(1, 65534), default=7070, show_default=True, help="Where to listen."
)
@click.option("--token-file", type=click.Path(), metavar="FILE", help="Write the token there, not here.")
@click.option("--renew", is_flag=True, help="Only a new certificate for the server.")
@click.option(
    "--token", "again", is_flag=True, help="Only another admin's token; the scheduler must be stopped."
)
def init(**options: Any) -> None:
    """Set a scheduler up in DIR: keys, certificates, a first admin's token, and a config file that uses them.

    Without --host it can be reached from this machine only. What is there already is never overwritten.
    """
    from gavel.cli.init import init

    init(**options)


COMMANDS: list[click.Command] = [serve, config, init, *job_commands.COMMANDS, *cluster_commands.COMMANDS]
