"""Channels to a scheduler, retries, streams that outlive their connection."""
