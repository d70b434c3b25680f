"""The arithmetic of recorded benchmarks."""
