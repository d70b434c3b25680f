"""The `gavel` command: one folder per subject, one file per command; `main` puts them together."""
