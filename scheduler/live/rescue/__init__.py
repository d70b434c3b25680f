"""Recovery from a message that raises: restore the state, refuse that message alone, hold or drain its cause."""
