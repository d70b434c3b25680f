"""gRPC for short commands: without its own log, and without searches for garbage."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from typing import Any

Command = Callable[..., Any]
# After how many new objects Python looks for garbage while a command calls a scheduler.
COLLECT_EVERY = 50_000


def load_quiet_grpc() -> None:
    """Load gRPC without its own log, because commands report each failed call themselves."""
    # Imports and calls make objects that are kept. Python would search them for garbage dozens of times.
    gc.set_threshold(COLLECT_EVERY)
    if "GRPC_VERBOSITY" not in os.environ:
        # gRPC reads the variable once, when it is loaded. We remove it again, so that a scheduler or an agent
        # that the command starts (`gavel up`) still logs what gRPC reports.
        os.environ["GRPC_VERBOSITY"] = "NONE"
        import grpc  # noqa: F401

        del os.environ["GRPC_VERBOSITY"]


def with_quiet_grpc(command: Command) -> Command:
    """Load gRPC without its own log before the command runs."""

    @functools.wraps(command)
    def run(*arguments: Any, **values: Any) -> Any:
        load_quiet_grpc()
        return command(*arguments, **values)

    return run
