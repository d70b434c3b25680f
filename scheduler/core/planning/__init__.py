"""The inputs of policies and rounds, built from the state as arrays. Reads the state, changes nothing."""
