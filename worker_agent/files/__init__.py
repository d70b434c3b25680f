"""The files of jobs, for their users: found, sent and kept by a process with the rights of the job's user."""
