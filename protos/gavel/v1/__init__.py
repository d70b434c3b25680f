"""Version 1: jobs and cluster for people, agents for nodes."""
