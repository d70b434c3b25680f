"""One run of a job on this node: prepared, launched, supervised, recovered after a restart, kept or removed."""
