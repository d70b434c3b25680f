"""`python -m worker_agent` runs the agent of a node. `gavel agent` does the same, and has more help."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Literal, get_origin, get_type_hints

from protos.files.settings import ConfigError
from worker_agent.config import AgentConfig, agent_config
from worker_agent.daemon import run_agent


def main(arguments: list[str] | None = None) -> int:
    """Read the settings, run the agent, and return the exit status."""
    parser = argparse.ArgumentParser(
        "worker_agent", description="Run the agent of a node.", allow_abbrev=False
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML or YAML file of settings")
    for field, kind in get_type_hints(AgentConfig).items():
        flag = f"--{field.replace('_', '-')}"
        if kind is bool:
            parser.add_argument(flag, action="store_true", default=None)
        elif kind == dict[str, str]:
            parser.add_argument(flag, action="append", metavar="KEY=VALUE")
        else:
            # A choice, such as that of `containment`, is checked with the settings.
            kind = str if get_origin(kind) is Literal else kind
            parser.add_argument(flag, type=kind, metavar="X" if kind is float else "TEXT")
    flags = vars(parser.parse_args(arguments))
    path = flags.pop("config")
    try:
        config = agent_config(path, flags, os.environ)
    except ConfigError as error:
        print(f"worker_agent: {error}", file=sys.stderr)
        return 2
    return run_agent(config)


if __name__ == "__main__":
    sys.exit(main())
