"""Recovery from a message that raises: restore the state, refuse that message alone, put its cause aside."""
