"""Simulations: the scheduler in virtual time, with simulated nodes that take its leases and send it their reports."""
