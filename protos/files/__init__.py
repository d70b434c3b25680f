"""Files that users write: YAML 1.2, settings, typed values. Client, scheduler and agent share this code."""
