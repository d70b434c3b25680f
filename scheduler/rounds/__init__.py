"""One round, as pure functions: rank, select, place, and the independent check of what came out."""
