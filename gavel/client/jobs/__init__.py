"""The description of a job: the spec, job files and their errors, and the packed work directory."""
