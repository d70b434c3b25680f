"""The fields of a job file that are options of `gavel submit`: name, kind and meaning.

Made from `JobSpec` by `python -m docs.cli_reference`; a test checks that it is up to date. `gavel submit --help` reads
this table because importing `JobSpec` takes 5 ms.
"""

# fmt: off
FIELDS = (
    ("name", "name", "A name for display"),
    ("setup", "lines of shell", "Lines for `/bin/sh`, once per node, before the job's processes"),
    ("setup_limit", "duration", "How long `setup` may take on a node before the job fails"),
    ("venv", "path", "A virtual environment on the nodes, put first on `PATH`: an absolute path"),
    ("container", "image or container", "The image of a container to run in, or `{image, runtime, mounts, env}`"),
    ("workdir", "path", "Where it runs: a path that every node sees"),
    ("upload", "true or false", "Pack and send `workdir`"),
    ("env", "mapping of variables to text", "Environment variables, except those of Gavel (`RANK` …, `GAVEL_…`)"),
    ("env_from", "mapping of variables to secrets", "Variables from secrets that the nodes keep, by the secret's name"),
    ("gpus", "number or range", "How many GPUs, or a range such as `2-8` from which the scheduler chooses"),
    ("ranks", "per_gpu or per_node", "One process for each GPU (the default), or one for each node"),
    ("cpus", "number from 0 up", "CPUs of the whole job"),
    ("memory", "size", "Memory of the whole job"),
    ("gpu_memory", "size", "Memory of each GPU, at least"),
    ("worker_types", "name or list of names", "Only on these types"),
    ("exclude_worker_types", "name or list of names", "Not on these types"),
    ("nodes", "name or list of names", "Only on these nodes"),
    ("labels", "mapping of names to text", "Only on nodes with all of these labels"),
    ("job_type", "name", "Jobs of one type share their measured rates"),
    ("rates", "mapping of worker types to numbers", "Steps per second by worker type, if known"),
    ("steps", "number above 0", "Steps in all"),
    ("reports_steps", "true or false", "Whether it reports the steps it has done, as `gavel.training` does"),
    ("checkpoint_dir", "path", "Where its checkpoints are: an absolute path"),
    ("checkpoints", "per_job or per_attempt", "per_attempt: each attempt has its own directory in `checkpoint_dir`"),
    ("weight", "number above 0", "5 gives five times the share"),
    ("tenant", "name", "The tenant whose share it uses: `org/team`"),
    ("user", "name", "The user to submit for"),
    ("deadline", "duration or time", "When it should be done: a time, or a duration from now"),
    ("start", "duration or time", "Start no earlier: a time, or a duration from now"),
    ("time_limit", "duration", "Limit of its running time, over all attempts"),
    ("min_run", "duration", "How long it cannot be preempted after each start"),
    ("max_cost", "number above 0", "Limit of its cost, in the currency of the prices"),
    ("preemptible", "true or false", "Whether it may be preempted"),
    ("packable", "true or false", "Whether it may share its GPUs with another job"),
    ("restart_cost", "duration", "How long a restart takes, if known"),
    ("retries", "whole number", "Restarts after failures of its own"),
    ("retries_node", "whole number", "Restarts after failures of nodes"),
    ("retries_preemption", "whole number", "Restarts after preemptions"),
    ("after", "jobs", "Jobs to wait for, by id or name: until they succeed or, as `17:ended`, until they end"),
    ("array", "indices", "A job for each index, in `GAVEL_ARRAY_INDEX`: `0-9`, `1,3,5`, `0-100:10`"),
)
