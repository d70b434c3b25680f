"""Names that other schedulers have for fields of a job file, and the JSON Schema of job files."""

from __future__ import annotations

from typing import Any

from gavel.client.jobs.kinds import KINDS
from gavel.client.jobs.spec import FIELDS

# Keys of SkyPilot tasks and Ray jobs that correspond to no single field, and what to write instead.
ELSEWHERE = {
    "resources": "gpus, worker_types, cpus and memory are separate fields at the top level",
    "accelerators": "gpus is their number and worker_types their type",
    "num_nodes": "gpus is the number over all nodes, and each rank receives the addresses of the others",
    "file_mounts": "upload: true sends the directory of the job file; data is read from where the nodes see it",
    "use_spot": "a job whose node goes away continues elsewhere; nothing asks for that",
    "autostop": "a job gives its GPUs back when it ends; nothing asks for that",
    "ports": "`gavel shell JOB --forward PORT` brings a port of a running job home",
    "runtime_env": "workdir with upload: true, env and setup are separate fields",
    "metadata": "name and job_type are all that describes a job",
}

# Names of other schedulers, and our names for the same fields.
SYNONYMS = {
    "cmd": "command",
    "args": "command",
    "entrypoint": "command",
    "image": "container",
    "image_id": "container",
    "docker_image": "container",
    "container_image": "container",
    "run": "script",
    "gpu": "gpus",
    "entrypoint_num_gpus": "gpus",
    "entrypoint_num_cpus": "cpus",
    "entrypoint_memory": "memory",
    "submission_id": "name",
    "working_dir": "workdir",
    "env_vars": "env",
    "num_gpus": "gpus",
    "gres": "gpus",
    "gpus_per_node": "gpus_together",
    "same_node": "gpus_together",
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
    "mail_type": "notify",
    "mail_user": "notify",
}


def json_schema() -> dict[str, Any]:
    """Return the schema of a job file, for editors and other checkers."""
    job = {
        "type": "object",
        "properties": {
            field.name: {**KINDS[field.kind].schema, "description": field.meaning} for field in FIELDS
        },
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
