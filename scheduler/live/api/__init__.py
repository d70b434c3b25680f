"""The calls that users and programs make: one service per file, and the views that they return."""
