"""The process that owns one lease's ranks and outlives the agent. Standard library only: it starts in milliseconds."""
