"""Notifications: events of jobs and nodes, sent to the webhooks of operators, at least once each."""
