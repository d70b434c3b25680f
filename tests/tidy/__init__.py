"""The rules of tests/test_tidy.py: how they read a file, and those about voice."""
