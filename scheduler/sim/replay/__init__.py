"""Simulations that continue from a journal: its history, the work already done, what made it."""
