"""`gavel agent` and `gavel agent join`. A test keeps the options of the former those of the agent's settings."""

from __future__ import annotations

import sys
from typing import Any

import click

from gavel.cli.faults import Fault, reason, refusing
from gavel.cli.io.options import JSON


@click.group(invoke_without_command=True)
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="A TOML or YAML file of settings.")
@click.option("--scheduler", metavar="HOST:PORT", help="Where agents link.  [default: 127.0.0.1:7070]")
@click.option("--name", metavar="NAME", help="Of this node.  [default: the host's]")
@click.option("--gpus", metavar="TYPE=COUNT", help="Declared instead of measured: v100=4, v100=2:speed=0.5.")
@click.option("--labels", multiple=True, metavar="KEY=VALUE", help="What jobs can ask for; may be repeated.")
@click.option("--state-dir", metavar="DIR", help="Runs, logs and packages: one directory per agent.")
@click.option("--checkpoint-dir", metavar="DIR", help="Best one that all nodes share.")
@click.option("--secrets-dir", metavar="DIR", help="Files that jobs may be given by reference.")
@click.option("--address", metavar="HOST", help="Under which other nodes reach this one.")
@click.option(
    "--single-user", is_flag=True, default=None, help="Every job runs as the agent does, even as root."
)
@click.option(
    "--switch-users", is_flag=True, default=None, help="Jobs run as who submitted them; needs root."
)
@click.option("--token-file", metavar="FILE", help="A token of the role agent, where there is no TLS.")
@click.option("--cert-dir", metavar="DIR", help="Where `gavel agent join` put its certificate.")
@click.option(
    "--ask-s", type=float, metavar="SECONDS", help="That a job has to checkpoint before it is signalled."
)
@click.option(
    "--setup-limit-s",
    type=float,
    metavar="SECONDS",
    help="How long the setup of a job may take, unless its job file says.",
)
@click.option("--grace-s", type=float, metavar="SECONDS", help="From the signal to the end of its processes.")
@click.option("--logs-mb", type=float, metavar="MB", help="Of each process's output, kept.")
@click.option("--logs-days", type=float, metavar="DAYS", help="That output is kept.")
@click.option(
    "--containment",
    metavar="HOW",
    help="How a job's processes are held together: auto, cgroup (refuse to start without) or subreaper.",
)
@click.option("--drain-on-stop", is_flag=True, default=None, help="When told to stop, let jobs end first.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object per line.")
@click.pass_context
def agent(context: click.Context, /, path: str | None, labels: tuple[str, ...], **flags: Any) -> None:
    """Run the agent of a node until it is told to stop.

    Settings come from the file, over them GAVEL_AGENT_KEY in the environment, over that the options here. On SIGTERM
    it stops at once and leaves its jobs running; the next agent takes them up.
    """
    import os

    from protos.files.settings import ConfigError
    from worker_agent.config import agent_config, labels_of

    with refusing(ConfigError):
        flags["labels"] = (
            labels_of([label for part in labels for label in part.split(",")]) if labels else None
        )
        if context.invoked_subcommand is not None:
            context.obj = path, flags
            return
        config = agent_config(path, flags, os.environ)
    from worker_agent.daemon import run_agent

    sys.exit(run_agent(config))


@agent.command()
@click.option("--scheduler", metavar="HOST:PORT", help="Where people reach it.")
@click.option("--name", metavar="NAME", help="Of this node.  [default: the host's]")
@click.option("--token", metavar="TOKEN", help="Made once for this node by `gavel token join`.")
@click.option("--token-file", type=click.Path(), metavar="FILE", help="A file with it; - for standard input.")
@click.option(
    "--ca-fingerprint", required=True, metavar="SHA256", help="Of the scheduler's CA; printed there too."
)
@click.option("--state-dir", metavar="DIR", help="That of the agent.")
@click.option(
    "--cert-dir", metavar="DIR", help="Where to put the certificate.  [default: in the state directory]"
)
@JSON
@click.pass_obj
def join(
    outer: Any, /, token: str | None, token_file: str | None, ca_fingerprint: str, as_json: bool, **flags: Any
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

    path, settings = outer
    settings |= {key: value for key, value in flags.items() if value is not None}
    with refusing(ConfigError):
        config = agent_config(path, settings, os.environ)
    if (token is None) == (token_file is None):
        raise Fault("say --token or --token-file")
    if token_file is not None:
        with refusing(OSError, subject=token_file), click.open_file(token_file) as file:
            token = file.read().strip()
    into = config.certificates or config.state / "certificates"
    try:
        with refusing(join.JoinError):
            joined = join.join(config.scheduler, config.node_name, token or "", ca_fingerprint, into)
    except OSError as error:
        raise Fault(f"{error.filename or into}: {reason(error)}") from None
    if as_json:
        data = {"node": config.node_name, "certificates": str(joined.certificates)}
        print_data(data | {"agents_address": joined.agents_address})
        return
    click.echo(f"{config.node_name} has joined; its certificate is in {joined.certificates}")
    start = {"config": path, "scheduler": joined.agents_address, "name": config.node_name}
    # By these the agent finds its certificate.
    start |= {key: settings.get(key) for key in ("state_dir", "cert_dir")}
    words = (f"--{key.replace('_', '-')} {shlex.quote(value)}" for key, value in start.items() if value)
    click.echo(f"start it with: gavel agent {' '.join(words)}")
