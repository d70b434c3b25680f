"""Commands about jobs: submit, queue, show, logs, fetch, wait, change, explain."""
