"""Automatic plans: computed for the nodes of a cluster at submission, and again on request."""
