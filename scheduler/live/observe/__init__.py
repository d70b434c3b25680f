"""The history: ended jobs, and leases, rounds and shares of the past, in one database; filters and pages."""
