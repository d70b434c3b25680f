"""Commands about policies: allocate a problem file, list policies; answers as tables and plots."""
