"""The scheduler's side of agents: their streams, outboxes and logs, the starts of gangs, and how nodes join."""
