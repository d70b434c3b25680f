"""External events of a simulated cluster: arrivals, changes, faults, reclaimed spot nodes."""
