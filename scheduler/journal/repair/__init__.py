"""Repair of damaged journals: salvage their records, keep the facts that still make sense."""
