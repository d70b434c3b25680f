"""The record of what happened, derived from facts: the book of ended jobs."""
