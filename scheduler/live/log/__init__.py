"""Lines of the scheduler's log: events, and the messages of gRPC."""
