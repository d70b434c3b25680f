"""One round, as pure functions: rank, select, place, and an independent check of the plan."""
