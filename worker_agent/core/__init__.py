"""The agent's decisions: a pure state machine. The only part that simulations import."""
