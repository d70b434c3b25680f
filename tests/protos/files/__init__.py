"""How files that users write are read."""
