"""The things a scheduler speaks of: jobs, nodes, leases, rates, shares. Values and tables; no decisions."""
