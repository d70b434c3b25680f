"""The rules of tests/test_tidy.py: the files and findings they share, and the rules of voice."""
