"""The agreement between the ranks of a gang on the last step."""
