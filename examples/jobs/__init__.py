"""Training scripts that run with and without Gavel, and job files for them."""
