"""How the ranks of a gang agree on the last step."""
