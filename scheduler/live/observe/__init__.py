"""The history of ended jobs: its database, the forgetting of old jobs, filters and pages."""
