"""`gavel config`: the settings of a scheduler or an agent, shown or checked."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import JSON
from gavel.cli.io.outputs import echo, print_data


@click.command()
@click.option("--example", is_flag=True, help="Print a file with every setting, its meaning and its default.")
@click.option("--check", "path", type=click.Path(), metavar="FILE", help="Check a file.")
@click.option("--agent", is_flag=True, help="The settings of an agent instead of the scheduler's.")
@JSON
def config(example: bool, path: str | None, agent: bool, as_json: bool) -> None:
    """Show or check the settings of a scheduler."""
    if path:
        _check(path, agent)
        if as_json:
            program = "agent" if agent else "scheduler"
            print_data({"file": path, "of": program, "right": True})
        else:
            echo(f"{path} is right")
    elif as_json:
        raise Fault("--json needs --check: an example is a TOML file")
    elif example:
        click.echo(_example(agent))
    else:
        raise Fault("give --example or --check FILE")


def _example(agent: bool) -> str:
    from protos.files.example import example_settings

    if agent:
        from worker_agent.config import ENVIRONMENT, AgentConfig

        return example_settings(AgentConfig, "Settings of a node's agent", ENVIRONMENT)
    from scheduler.live import config as live

    return example_settings(live.DaemonConfig, "Settings of the scheduler", live.ENVIRONMENT)


def _check(path: str, agent: bool) -> None:
    from policies.errors import PolicyError
    from protos.files.settings import ConfigError
    from scheduler.live.config import daemon_config
    from worker_agent.config import agent_config

    with refusing(ConfigError, PolicyError):
        if agent:
            agent_config(path, {})
        else:
            config = daemon_config(path, {}, (), {})
            _check_policy(config.scheduler.policy, config.policy_files)


def _check_policy(spec: str, files: Sequence[str]) -> None:
    """Raise PolicyError for a policy that does not exist, or for a file of policies that cannot be loaded."""
    from scheduler.model.settings import Settings

    # The default is not checked, because importing the solvers takes most of a second.
    if files or spec != Settings().policy:
        from policies.registry import resolve
        from scheduler.plugins import load

        for fault in load(files).values():
            raise Fault(f"policy_files: {fault}")
        resolve(spec)
