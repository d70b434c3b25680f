"""Channels to a scheduler, retries, and streams that survive a lost connection."""
