"""The arithmetic of benchmarks whose figures are kept."""
