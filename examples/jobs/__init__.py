"""Training scripts that run as they are, with and without Gavel."""
