"""The solver's process: its protocol, its child, its restarts. Imports the policies only in the child."""
