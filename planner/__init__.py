"""Parallelisation plans: from a model's profile and a cluster to the fastest ways to train the model there."""
