"""The calls of users and programs: one service per file, and the views that the calls return."""
