"""The history of ended jobs: its database, what is forgotten, filters and pages."""
