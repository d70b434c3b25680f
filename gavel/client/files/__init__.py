"""Files of jobs: the local directory into which they go, and the fetch that decides what goes there."""
