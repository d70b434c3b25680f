"""Simulations that repeat a journal: its history, the work of its jobs, the conditions of the run that made it."""
