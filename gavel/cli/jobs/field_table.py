"""The fields of a job file that are options of `gavel submit`: name, kind and meaning.

Made from `JobSpec` by `python -m docs.cli_reference`; a test checks that it is fresh. `JobSpec` itself takes 5 ms of
processor time to import, which `gavel submit --help` is spared.
"""

# fmt: off
FIELDS = (
    ("name", "name", "A name for people, not unique"),
    ("setup", "lines of shell", "Lines for `/bin/sh`, once per node, before the job's processes"),
    ("setup_limit", "duration", "How long `setup` may take on a node before the job fails"),
    ("venv", "path", "A virtual environment on the nodes, put first on `PATH`: an absolute path"),
    ("workdir", "path", "Where it runs: a path that every node sees"),
    ("upload", "true or false", "Pack `workdir` and send it along"),
    ("env", "mapping of variables to text", "Environment variables"),
    ("env_from", "mapping of variables to secrets", "Variables from secrets that the nodes keep, by the secret's name"),
    ("gpus", "number or range", "How many GPUs, or a range such as `2-8` to run at any known width"),
    ("ranks", "per_gpu or per_node", "One process for each GPU (as without it), or one for each node"),
    ("cpus", "number from 0 up", "CPUs of the whole job"),
    ("memory", "size", "Memory of the whole job"),
    ("gpu_memory", "size", "Each GPU has at least this much"),
    ("worker_types", "name or list of names", "On any of these types"),
    ("exclude_worker_types", "name or list of names", "Not on these types"),
    ("nodes", "name or list of names", "Only on these nodes"),
    ("labels", "mapping of names to text", "Only on nodes with all of these labels"),
    ("job_type", "name", "Jobs of one type share their measured rates"),
    ("rates", "mapping of worker types to numbers", "Steps per second by worker type, where you know them"),
    ("steps", "number above 0", "Steps in all"),
    ("reports_steps", "true or false", "Whether it reports the steps it has done, as `gavel.training` does"),
    ("checkpoint_dir", "path", "Where its checkpoints are: an absolute path"),
    ("checkpoints", "per_job or per_attempt", "per_attempt: each attempt has a directory of its own there"),
    ("weight", "number above 0", "5: five times the share"),
    ("tenant", "name", "Whose share it uses: `org/team`"),
    ("user", "name", "On whose behalf (for operators)"),
    ("deadline", "duration or time", "Done by then: after the submission, or a time"),
    ("start", "duration or time", "Not before: after the submission, or a time"),
    ("time_limit", "duration", "Of running, over all attempts"),
    ("min_run", "duration", "Once started, not preempted before"),
    ("max_cost", "number above 0", "In the currency of the prices"),
    ("preemptible", "true or false", "Whether it may have to give way"),
    ("packable", "true or false", "Whether it may share its GPUs with another job"),
    ("restart_cost", "duration", "How long a restart takes, where you know it"),
    ("retries", "whole number", "After failures of its own (0 without it)"),
    ("retries_node", "whole number", "After failures of nodes (no limit without it)"),
    ("retries_preemption", "whole number", "After preemptions (no limit without it)"),
    ("after", "jobs", "Jobs to wait for, by id or name: until they succeed or, as `17:ended`, until they end"),
    ("array", "indices", "A job for each index, in `GAVEL_ARRAY_INDEX`: `0-9`, `1,3,5`, `0-100:10`"),
)
