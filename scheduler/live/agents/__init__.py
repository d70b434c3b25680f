"""The scheduler's side of agents: their streams, outboxes, logs and files, the starts of gangs, and how nodes join."""
