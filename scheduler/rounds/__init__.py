"""One round, as pure functions: rank, select, place, move to data, and an independent check of the plan."""
