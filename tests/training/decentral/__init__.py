"""Tests of training on data that stays where it is."""
