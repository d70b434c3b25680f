"""One file per question; each prints a table."""
