"""Code that client, scheduler and agent share: the protocol, the reader of files that users write, the log."""
