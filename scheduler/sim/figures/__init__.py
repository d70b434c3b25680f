"""Figures of a simulation: metrics, a row per job, GPU time, fair shares, the ideal run."""
