"""Version 1 of the protocol: jobs and cluster for users, agents for nodes."""
