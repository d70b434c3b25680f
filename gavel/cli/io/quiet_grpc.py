"""Loads gRPC without its own log: we report what is wrong with a connection once, in our words.

gRPC reads the variable once, when it is loaded. It does not stay in the environment, so that a scheduler or an agent
started by a command (`gavel up`) still logs what gRPC reports.
"""

import os

if "GRPC_VERBOSITY" not in os.environ:
    os.environ["GRPC_VERBOSITY"] = "NONE"
    import grpc  # noqa: F401

    del os.environ["GRPC_VERBOSITY"]
