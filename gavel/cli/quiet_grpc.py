"""Imported before grpc, so that what is wrong with a connection is said once: by us, and not by the library too."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
