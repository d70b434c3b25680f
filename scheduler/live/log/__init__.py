"""Lines of the scheduler's log: events as lines, and what gRPC reports."""
