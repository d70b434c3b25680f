"""What happens to a simulated cluster from outside: arrivals, changes, faults, reclaimed spot nodes."""
