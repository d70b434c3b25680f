"""The simulated world: virtual time, nodes that run the agent's own core, and their physics."""
