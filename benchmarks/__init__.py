"""Benchmarks: each file measures one cost and prints a table."""
