"""Files that users write, YAML 1.2 above all: read by the same code in client, scheduler and agent."""
