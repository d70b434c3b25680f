"""Example problems, demos and training jobs, ready to run."""
