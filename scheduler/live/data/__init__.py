"""Files beside the journal: backups, uploaded packages, usage, attempts."""
