"""A fuzz of both gRPC ports of a real scheduler: `python -m tests.fuzz --minutes 5 --seed 1`."""
