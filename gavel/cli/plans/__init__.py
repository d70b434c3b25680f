"""Commands about parallelisation plans: profiles of models, and the best plans of a model, as tables and as JSON."""
