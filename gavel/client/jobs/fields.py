"""The fields of a job file, in the order of the reference: what each is, and where in a JobSpec it goes.

The reader, the JSON Schema, docs/job-file.md and the checks of `gavel submit --…` all follow from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gavel.client.jobs import values as v


@dataclass(frozen=True)
class Field:
    """`to`: the field of JobSpec; empty: the kind says."""

    name: str
    kind: v.Kind
    meaning: str
    example: str
    to: str = ""

    @property
    def target(self) -> str:
        """Where its value goes."""
        return self.to or self.name


FIELDS = (
    Field("name", v.NAME, "For people; not unique", "chat"),
    Field(
        "command",
        v.COMMAND,
        "What to run: a program and its arguments. No shell sees it",
        "[python, train.py]",
    ),
    Field("script", v.LINES, "Instead of `command`: lines for `/bin/sh`", "python train.py > out.txt"),
    Field(
        "setup", v.LINES, "Lines for `/bin/sh`, once per node, before the job's processes", "pip install -e ."
    ),
    Field(
        "setup_limit",
        v.DURATION,
        "Of `setup`, on each node: the job fails when it takes longer. 1h without it (the agent's `setup_limit_s`)",
        "2h",
        "setup_limit_s",
    ),
    Field(
        "venv",
        v.PATH,
        "A virtual environment on the nodes, put first on `PATH`: an absolute path",
        "/shared/envs/torch",
    ),
    Field("workdir", v.PATH, "Where it runs: a path that every node sees. Relative: to this file", "."),
    Field("upload", v.BOOLEAN, "Pack `workdir` (default: this file's directory) and send it along", "true"),
    Field(
        "env",
        v.VARIABLES,
        "Environment variables; not those that Gavel sets (`RANK` and the like, `GAVEL_…`)",
        "{SEED: 7}",
    ),
    Field(
        "env_from",
        v.VARIABLES,
        "Variables from secrets that the nodes keep, by the secret's name",
        "{HF_TOKEN: hub-token}",
    ),
    Field(
        "gpus", v.WIDTH, "How many; a range (`2-8`, `{min: 2, max: 8}`) may be run at any known width", "4"
    ),
    Field("ranks", v.RANKS, "One process for each GPU (as without it), or one for each node", "per_node"),
    Field("cpus", v.FROM_0, "CPUs of the whole job", "16"),
    Field("memory", v.SIZE, "Memory of the whole job", "64GB", "memory_gb"),
    Field(
        "gpu_memory",
        v.SIZE,
        "Each GPU has at least this much; those whose memory nobody tells count as having it",
        "40GB",
        "gpu_memory_gb",
    ),
    Field("worker_types", v.NAMES, "Any of these types; without it, any", "[a100, h100]"),
    Field("exclude_worker_types", v.NAMES, "None of these", "[k80]", "excluded_worker_types"),
    Field("nodes", v.NAMES, "Only on these nodes", "[gpu-7, gpu-8]"),
    Field("labels", v.LABELS, "Only on nodes with all of these labels", "{rack: r2}"),
    Field("job_type", v.NAME, "Jobs of one type share their measured rates", "resnet50-b64"),
    Field("rates", v.RATES, "Steps per second by worker type, where you know them", "{a100: 12.5, v100: 4}"),
    Field("steps", v.ABOVE_0, "Steps in all; without it, unknown", "1e6"),
    Field(
        "reports_steps",
        v.BOOLEAN,
        "false: it tells nobody its steps (it does not use `gavel.training`)",
        "false",
    ),
    Field(
        "checkpoint_dir",
        v.PATH,
        "An absolute path; without it, a directory of the agent",
        "/shared/ck/chat",
    ),
    Field(
        "checkpoints",
        v.CHECKPOINTS,
        "per_attempt: each attempt has a directory of its own there, which begins as a copy of the last one's",
        "per_attempt",
    ),
    Field("weight", v.ABOVE_0, "5: five times the share. 1 without it", "2"),
    Field("tenant", v.NAME, "Whose share it uses: `org/team`", "vision/detection"),
    Field("user", v.NAME, "On whose behalf; for operators", "ada"),
    Field(
        "deadline",
        v.INSTANT,
        "Done by then: after the submission, or a time. Some policies keep it, if `steps` are known",
        "8h",
        "deadline_s",
    ),
    Field(
        "start",
        v.INSTANT,
        "Not before: after the submission, or a time",
        "2030-12-31T18:00",
        "earliest_start_s",
    ),
    Field("time_limit", v.DURATION, "Of running, over all attempts", "2d", "time_limit_s"),
    Field("min_run", v.DURATION, "Once started, not preempted before", "30m", "min_run_s"),
    Field("max_cost", v.ABOVE_0, "In the currency of the prices; it fails when it is used up", "250"),
    Field("preemptible", v.BOOLEAN, "false: once started it keeps its GPUs", "false"),
    Field("packable", v.BOOLEAN, "false: never shares its GPUs with another job", "false"),
    Field("restart_cost", v.DURATION, "How long a restart takes, where you know it", "90s", "restart_cost_s"),
    Field("retries", v.COUNT, "After failures of its own. 0 without it", "2"),
    Field("retries_node", v.COUNT, "After failures of nodes; without it, no limit", "5"),
    Field("retries_preemption", v.COUNT, "After preemptions; without it, no limit", "50"),
    Field(
        "after",
        v.AFTER,
        "Jobs to wait for, by id or name: until they succeed, or `{job: 17, when: ended}`",
        "[17, 18]",
    ),
    Field(
        "array", v.INDICES, "A job for each index, in `GAVEL_ARRAY_INDEX`: `0-9`, `1,3,5`, `0-100:10`", "0-9"
    ),
)
BY_NAME = {field.name: field for field in FIELDS}

# What stands in the tasks of SkyPilot and has no single field here, and what says it.
SKYPILOT = {
    "resources": "gpus, worker_types, cpus and memory stand beside each other at the top",
    "num_nodes": "gpus is the number over all nodes, and each rank is told where the others are",
    "file_mounts": "the directory of the job file is sent along with upload: true",
}

# What people write who come from elsewhere.
ALSO_SAID = {
    "cmd": "command",
    "args": "command",
    "entrypoint": "command",
    "run": "script",
    "gpu": "gpus",
    "num_gpus": "gpus",
    "gres": "gpus",
    "cpu": "cpus",
    "ncpus": "cpus",
    "cpus_per_task": "cpus",
    "mem": "memory",
    "ram": "memory",
    "memory_gb": "memory",
    "vram": "gpu_memory",
    "gpu_memory_gb": "gpu_memory",
    "partition": "worker_types",
    "gpu_type": "worker_types",
    "worker_type": "worker_types",
    "excluded_worker_types": "exclude_worker_types",
    "constraint": "labels",
    "nodelist": "nodes",
    "account": "tenant",
    "project": "tenant",
    "priority": "weight",
    "nice": "weight",
    "begin": "start",
    "earliest_start": "start",
    "time": "time_limit",
    "walltime": "time_limit",
    "timeout": "time_limit",
    "time_limit_s": "time_limit",
    "deadline_s": "deadline",
    "min_run_s": "min_run",
    "dependency": "after",
    "depends_on": "after",
    "requeue": "retries",
    "environment": "env",
    "secret": "env_from",
    "secrets": "env_from",
    "env_secrets": "env_from",
    "env_file": "env_from",
    "chdir": "workdir",
    "cwd": "workdir",
    "workdir_path": "workdir",
    "budget": "max_cost",
    "exclusive": "packable",
    "comment": "name",
}


def json_schema() -> dict[str, Any]:
    """Of a job file, for editors and checks elsewhere."""
    job = {
        "type": "object",
        "properties": {field.name: {**field.kind.schema, "description": field.meaning} for field in FIELDS},
        "additionalProperties": False,
    }
    needs = {"oneOf": [{"required": ["command"]}, {"required": ["script"]}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Gavel job file",
        "$defs": {"fields": job},
        "anyOf": [
            {"allOf": [{"$ref": "#/$defs/fields"}, needs]},
            {
                "type": "object",
                "properties": {
                    "defaults": {"$ref": "#/$defs/fields"},
                    "jobs": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/fields"}},
                },
                "required": ["jobs"],
                "additionalProperties": False,
            },
        ],
    }
