"""Data for training: what a loop waits for, and caches and preparation that the jobs of a node share."""
