"""What was done to the scheduler to break it, as commands that print a table of figures."""
