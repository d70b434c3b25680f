"""The scheduler's side of agents: their streams, what waits to be sent to them, their logs, how nodes join."""
