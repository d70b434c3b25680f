"""The bodies of `gavel config`."""

from __future__ import annotations

import click

from gavel.cli import Fault


def show(agent: bool) -> None:
    """Every setting, what it means and its default."""
    from scheduler.config import example_config
    from scheduler.live.daemon_config import DaemonConfig

    if agent:
        raise Fault("the agent's settings are its options: `gavel agent --help`")
    click.echo(example_config(DaemonConfig))


def check(path: str, agent: bool) -> None:
    """Nothing when the file is right; one line and exit code 2 when it is not."""
    from policies.errors import PolicyError
    from policies.registry import resolve
    from scheduler.config import ConfigError
    from scheduler.live.daemon_config import daemon_config

    if agent:
        raise Fault("the agent's settings are its options: `gavel agent --help`")
    try:
        resolve(daemon_config(path, {}, (), {}).scheduler.policy)
    except (ConfigError, PolicyError) as error:
        raise Fault(str(error)) from None
    click.echo(f"{path} is right")
