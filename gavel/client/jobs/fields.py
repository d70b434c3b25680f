"""Names that other schedulers have for fields of a job file, and the JSON Schema of job files."""

from __future__ import annotations

from typing import Any

from gavel.client.jobs.kinds import KINDS
from gavel.client.jobs.spec import FIELDS

# Keys of SkyPilot tasks that correspond to no single field, and what to write instead.
SKYPILOT = {
    "resources": "gpus, worker_types, cpus and memory are separate fields at the top level",
    "num_nodes": "gpus is the number over all nodes, and each rank receives the addresses of the others",
    "file_mounts": "upload: true sends the directory of the job file",
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
