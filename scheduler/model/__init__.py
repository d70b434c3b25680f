"""The values that the scheduler works with: jobs, nodes, leases, rates, shares. No decisions."""
