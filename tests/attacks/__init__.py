"""Attacks on the scheduler, as commands that print a table of figures."""
