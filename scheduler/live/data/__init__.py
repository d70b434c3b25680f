"""Files beside the journal: backups, uploaded packages, usage, attempts; all but packages can be made again."""
