"""Attacks on the running programs, as commands that print figures: `python -m tests.attacks.NAME`."""
