"""Recovery from errors in the core: restore the state, refuse the message at fault, hold jobs or drain nodes."""
