"""Trials of policies: problems made at random, and the promises that every policy keeps on them."""
