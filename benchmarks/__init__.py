"""One file for each question about cost; each prints a table."""
