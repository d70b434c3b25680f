"""Checkpoints as sets of files: complete, the newest, never those of a stale attempt."""
