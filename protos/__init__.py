"""The ground that client, scheduler and agent share: the protocol, and the reader of files that users write."""
