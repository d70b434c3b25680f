"""A job's description: the spec, job files, what is wrong with them, the work directory as a package."""
