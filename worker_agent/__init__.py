"""The agent on every GPU server: leases in, processes out."""
