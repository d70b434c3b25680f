"""Lines of the scheduler's log: their format, events as lines, and what gRPC reports."""
