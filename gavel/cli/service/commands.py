"""Commands of the service: their options, and nothing yet of how it is done. COMMANDS lists those of all files."""

from __future__ import annotations

import sys
from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.options import JSON
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
    from scheduler.config import ConfigError
    from scheduler.live.config import daemon_config
    from scheduler.live.daemon import serve as run

    flags |= {"scheduler.policy": policy, "scheduler.round_s": round_s}
    try:
        config = daemon_config(path, flags, more)
        resolve(config.scheduler.policy)
    except (ConfigError, PolicyError) as error:
        raise Fault(str(error)) from None
    sys.exit(run(config))


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
    from pathlib import Path

    from gavel.cli.service.up import up

    lead_s = min(2.0, round_s / 5)
    settings = [
        *(f"scheduler.policy={policy}", f"scheduler.round_s={round_s}"),
        *(f"scheduler.solve_lead_s={lead_s}", f"scheduler.plan_lead_s={lead_s / 2}"),
    ]
    up(Path(data_dir).expanduser(), agents, listen, settings, stop_s=round_s + 30.0)


@click.command()
@click.option("--example", is_flag=True, help="Print a file with every setting, its meaning and its default.")
@click.option("--check", "path", type=click.Path(), metavar="FILE", help="Say whether a file is right.")
@click.option("--agent", is_flag=True, help="Of an agent instead of the scheduler.")
@JSON
def config(example: bool, path: str | None, agent: bool, as_json: bool) -> None:
    """Show or check the settings of a scheduler."""
    from gavel.cli.service.config import check, show

    if path:
        check(path, agent, as_json)
    elif as_json:
        raise Fault("--json goes with --check: an example is a TOML file")
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
@JSON
def init(**options: Any) -> None:
    """Set a scheduler up in DIR: keys, certificates, a first admin's token, and a config file that uses them.

    Without --host it can be reached from this machine only. What is there already is never overwritten.
    """
    from gavel.cli.service.init import init

    init(**options)
