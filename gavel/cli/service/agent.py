"""`gavel agent`, whose options are the settings of an agent, and `gavel agent join`."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

import click

from gavel.cli.faults import Fault, reason, refusing
from gavel.cli.io.options import JSON

# The placeholder for a setting's value in the help, by the setting's name or by the last part of its name.
METAVARS = {
    "scheduler": "HOST:PORT",
    "name": "NAME",
    "gpus": "TYPE=COUNT",
    "labels": "KEY=VALUE",
    "address": "HOST",
    "cache": "SIZE",
    "cache_groups": "DATA=GROUP",
    "containment": "HOW",
    "level": "LEVEL",
    "runtime": "NAME",
    "mounts": "DIRS",
    "dir": "DIR",
    "file": "FILE",
    "s": "SECONDS",
    "mb": "MB",
    "gb": "GB",
    "days": "DAYS",
}


class _Agent(click.Group):
    """A group with an option for each setting of an agent. The settings are imported when the options are needed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options; the options of the settings follow --config."""
        config, *others = super().get_params(ctx)
        return [config, *self._settings, *others]

    @cached_property
    def _settings(self) -> list[click.Parameter]:
        from protos.files.example import settings_of
        from worker_agent.config import AgentConfig

        return [_option(*setting) for setting in settings_of(AgentConfig)]


def _option(name: str, meaning: str, default: Any) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    if default is False:
        return click.Option([flag], is_flag=True, default=None, help=meaning)
    if default is True:
        opposite = f"--no-{name.replace('_', '-')}"
        return click.Option([f"{flag}/{opposite}"], default=None, help=meaning)
    metavar = METAVARS.get(name) or METAVARS[name.rpartition("_")[2]]
    if isinstance(default, dict):
        return click.Option(
            [flag], multiple=True, metavar=metavar, help=f"{meaning} May be given several times."
        )
    is_number = isinstance(default, float)
    text = f"{default:g}" if is_number else default
    help = f"{meaning}  [default: {text}]" if text else meaning
    return click.Option([flag], type=float if is_number else str, metavar=metavar, help=help)


@click.group(cls=_Agent, invoke_without_command=True)
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="A TOML or YAML file of settings.")
@click.pass_context
def agent(context: click.Context, /, path: str | None, **flags: Any) -> None:
    """Run the agent of a node until it is stopped.

    Settings come from the file; GAVEL_AGENT_KEY in the environment overrides it, and the options here override both. On
    SIGTERM the agent stops at once and leaves its jobs running; the next agent takes them over.
    """
    import os

    from protos.files.settings import ConfigError
    from worker_agent.config import agent_config

    # An option that may be given several times, and is not.
    flags = {name: None if value == () else value for name, value in flags.items()}
    if context.invoked_subcommand is not None:
        context.obj = path, flags
        return
    with refusing(ConfigError):
        config = agent_config(path, flags, os.environ)
    from worker_agent.daemon import run_agent

    sys.exit(run_agent(config))


@agent.command()
@click.option("--scheduler", metavar="HOST:PORT", help="The scheduler's address for users.")
@click.option("--name", metavar="NAME", help="The name of this node.  [default: the host's]")
@click.option("--token", metavar="TOKEN", help="The join token from `gavel token join`.")
@click.option(
    "--token-file", type=click.Path(), metavar="FILE", help="A file with the token; - for standard input."
)
@click.option(
    "--ca-fingerprint",
    required=True,
    metavar="SHA256",
    help="Fingerprint of the scheduler's CA, from `gavel token join`.",
)
@click.option("--state-dir", metavar="DIR", help="The agent's state directory.")
@click.option(
    "--cert-dir", metavar="DIR", help="Where to put the certificate.  [default: in the state directory]"
)
@JSON
@click.pass_obj
def join(
    parent: Any,
    /,
    token: str | None,
    token_file: str | None,
    ca_fingerprint: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Get a certificate for this node.

    gavel agent join --scheduler head-node:7070 --token … --ca-fingerprint sha256:…
    """
    import os
    import shlex

    from gavel.cli.io.outputs import print_data
    from protos.files.settings import ConfigError
    from worker_agent.config import agent_config
    from worker_agent.link import join

    path, settings = parent
    settings |= {key: value for key, value in flags.items() if value is not None}
    with refusing(ConfigError):
        config = agent_config(path, settings, os.environ)
    if (token is None) == (token_file is None):
        raise Fault("give --token or --token-file")
    if token_file is not None:
        with refusing(OSError, subject=token_file), click.open_file(token_file) as file:
            token = file.read().strip()
    folder = config.certificates or config.state / "certificates"
    try:
        with refusing(join.JoinError):
            joined = join.join(config.scheduler, config.node_name, token or "", ca_fingerprint, folder)
    except OSError as error:
        raise Fault(f"{error.filename or folder}: {reason(error)}") from None
    if as_json:
        data = {"node": config.node_name, "certificates": str(joined.certificates)}
        print_data(data | {"agents_address": joined.agents_address})
        return
    click.echo(f"{config.node_name} has joined; its certificate is in {joined.certificates}")
    values = {"config": path, "scheduler": joined.agents_address, "name": config.node_name}
    # The agent needs these options to find its certificate.
    values |= {key: settings.get(key) for key in ("state_dir", "cert_dir")}
    options = (f"--{key.replace('_', '-')} {shlex.quote(value)}" for key, value in values.items() if value)
    click.echo(f"start it with: gavel agent {' '.join(options)}")
