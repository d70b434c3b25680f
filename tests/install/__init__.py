"""The wheel and the source distribution: what is in them, and what works where only the base is installed."""
