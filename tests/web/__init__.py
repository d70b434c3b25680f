"""Tests of the web gateway."""
