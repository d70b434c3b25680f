"""Gavel's protocol."""
