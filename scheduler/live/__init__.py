"""The live world: a real clock, a solver in its own process, agents and users over gRPC."""
