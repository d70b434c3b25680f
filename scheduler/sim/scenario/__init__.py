"""Events that come to a simulated cluster from outside: arrivals, changes, faults, reclaimed spot nodes."""
