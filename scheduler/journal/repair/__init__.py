"""What to do with a damaged journal: salvage its records, keep the facts that still make sense."""
