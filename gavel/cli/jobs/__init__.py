"""Commands about jobs: submit, queue, show, logs, wait, change, explain."""
