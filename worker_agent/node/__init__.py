"""The node's own inventory and files: GPUs, storage, users, secrets, packages, MPS. No network."""
