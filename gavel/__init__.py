"""Gavel's face for people: the command line, the client and what a training script imports.

Nothing is imported here, so that a training script pays for nothing that it does not use.
"""

__version__ = "0.1.0"
