"""Commands that run and look after a scheduler: serve, agent, up, init, config, doctor, backup, fsck."""
