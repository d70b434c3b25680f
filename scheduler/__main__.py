"""`python -m scheduler`: the daemon without the command line tools. `gavel serve` has more options."""

from __future__ import annotations

import argparse
import sys

from protos.extras import missing_extra


def main(arguments: list[str] | None = None) -> int:
    """Run until stopped, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduler", description="Run a Gavel scheduler.")
    parser.add_argument("--config", metavar="FILE", help="a TOML or YAML file of settings")
    parser.add_argument("--data-dir", metavar="DIR", help="where journal, tokens and keys are kept")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where users reach the scheduler")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as scheduler.round_s=60",
    )
    options = parser.parse_args(arguments)
    try:
        from policies.errors import PolicyError
        from protos.files.settings import ConfigError
        from scheduler.live.config import daemon_config
        from scheduler.live.daemon import serve
        from scheduler.live.solver.process import check_policy
    except ImportError as error:
        if line := missing_extra(error):
            parser.exit(2, f"{parser.prog}: {line}\n")
        raise
    flags = {"data_dir": options.data_dir, "listen": options.listen}
    try:
        config = daemon_config(options.config, flags, options.set)
        check_policy(config.scheduler.policy, config.policy_files)
    except (ConfigError, PolicyError) as error:
        parser.error(str(error))
    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
