"""Checkpoints as sets of files: whole, newest, never of a stale attempt."""
