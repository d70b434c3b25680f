"""Real processes from end to end: a daemon, agents, jobs."""
