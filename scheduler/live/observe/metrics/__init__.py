"""Metrics for Prometheus: families and their text, what facts count, gauges of the state, and the port."""
