"""The live world: a real clock, a solver in a process of its own, agents and users over gRPC."""
