"""A world that exists only in virtual time: the same messages up, the same leases down."""
