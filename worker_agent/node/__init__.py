"""What the node has and keeps: GPUs, storage, users, secrets, packages, MPS. No network."""
