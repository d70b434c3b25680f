"""Commands about parallelisation plans: the best plans of a model, as tables and as JSON."""
