"""Checkpoints as sets of files: a job resumes from its newest complete set, and stale attempts complete none."""
