"""The solver's process: its protocol, its child, its restarts. Only the child imports the policies."""
