"""The bodies of `gavel config`."""

from __future__ import annotations

import click

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import STDOUT, write_json


def show(agent: bool) -> None:
    """Every setting, what it means and its default."""
    from scheduler.config import example_config
    from scheduler.live.config import ENVIRONMENT, DaemonConfig
    from worker_agent.config import ENVIRONMENT as AGENT_ENVIRONMENT
    from worker_agent.config import AgentConfig

    text = (
        example_config(AgentConfig, AGENT_ENVIRONMENT) if agent else example_config(DaemonConfig, ENVIRONMENT)
    )
    click.echo(text.replace("Settings of the scheduler", "Settings of a node's agent", 1) if agent else text)


def check(path: str, agent: bool, as_json: bool) -> None:
    """Nothing when the file is right; one line and exit code 2 when it is not."""
    from policies.errors import PolicyError
    from scheduler.config import ConfigError
    from scheduler.live.config import daemon_config
    from worker_agent.config import ConfigError as AgentConfigError
    from worker_agent.config import agent_config

    try:
        if agent:
            agent_config(path, {})
        else:
            _check_policy(daemon_config(path, {}, (), {}).scheduler.policy)
    except (ConfigError, PolicyError, AgentConfigError) as error:
        raise Fault(str(error)) from None
    if as_json:
        write_json("--json", STDOUT, {"file": path, "of": "agent" if agent else "scheduler", "right": True})
    else:
        click.echo(f"{path} is right")


def _check_policy(spec: str) -> None:
    """PolicyError for a policy that does not exist. Its solvers take most of a second to import."""
    from scheduler.model.settings import Settings

    if spec != Settings().policy:
        from policies.registry import resolve

        resolve(spec)
