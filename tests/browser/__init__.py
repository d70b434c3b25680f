"""The web pages in a real Chromium, with a real scheduler, agents and gateway."""
