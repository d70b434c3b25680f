"""The rules of tests/test_tidy.py: the files and findings that they share, and the rules of style (voice.py)."""
