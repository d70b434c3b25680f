"""The instances of `reference/allocations.json` as problems, and our spec for each of their policies."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from policies.problem import Problem, Tenant
from tests.support.problems import alone, by_hand, together
from tests.support.public_data import public_data

SPECS = {
    "max_min_fairness": "las+blind",
    "max_min_fairness_perf": "las",
    "max_min_fairness_packed": "las+packing",
    "max_min_fairness_water_filling": "water_filling+blind",
    "max_min_fairness_water_filling_perf": "water_filling",
    "max_min_fairness_water_filling_packed": "water_filling+packing",
    "max_min_fairness_water_filling_perf@hier": "hierarchical",
    "max_min_fairness_water_filling@hier": "hierarchical+blind",
    "finish_time_fairness": "ftf+blind",
    "finish_time_fairness_perf": "ftf",
    "finish_time_fairness_packed": "ftf+packing",
    "min_total_duration": "makespan+blind",
    "min_total_duration_perf": "makespan",
    "min_total_duration_packed": "makespan+packing",
    "max_sum_throughput_perf": "max_throughput(raw=true)",
    "max_sum_throughput_normalized_by_cost_perf": "throughput_per_cost",
    "max_sum_throughput_normalized_by_cost_perf_SLOs": "throughput_per_cost",
    "max_sum_throughput_normalized_by_cost_packed_SLOs": "throughput_per_cost+packing",
    "isolated": "isolated",
    "strategy_proof": "strategy_proof",
    "allox": "allox",
}


@cache
def instances() -> tuple[dict[str, Any], ...]:
    """All instances of the file, unchanged."""
    text = public_data("reference/allocations.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["instances"])


def answers(*kinds: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(instance, result) of every published answer of these policies."""
    return [(i, r) for i in instances() for r in i["results"] if r["policy"] in kinds]


def blind_reference(instance: dict[str, Any]) -> str:
    """Return the type whose rates the original's blind policies use for all types."""
    return "v100" if "v100" in instance["worker_types"] else "v100_unconsolidated"


def spec(instance: dict[str, Any], policy: str) -> str:
    """Return our spec of a published policy for this instance."""
    return SPECS[policy].replace("blind", f"blind(reference={blind_reference(instance)})")


def problem_of(instance: dict[str, Any], policy: str = "") -> Problem:
    """Return the problem of this instance for the policy of this name."""
    jobs, types = instance["jobs"], instance["worker_types"]
    name = {job["id"]: f"{job['id']:05d}" for job in jobs}
    ways = [
        alone(name[job["id"]], kind, job["throughputs"][kind], job["scale_factor"])
        for job in jobs
        for kind in types
    ]
    width = {job["id"]: job["scale_factor"] for job in jobs}
    for key, rates in instance.get("pair_throughputs", {}).items():
        a, b = map(int, key.split(","))
        ways += [
            together((name[a], name[b]), kind, tuple(rates[kind]), width[a])
            for kind in types
            if any(rates.get(kind, ()))
        ]
    facts = {
        "gpus": [job["scale_factor"] for job in jobs],
        "weight": [job["priority_weight"] for job in jobs],
        "steps_left": [job["num_steps_remaining"] for job in jobs],
        "waited_s": [job["time_since_start"] for job in jobs],
        "price_per_gpu_hour": np.array([instance["instance_costs"][kind] for kind in types]),
    }
    if "entities" in instance:
        tenant = {name[job]: entity["id"] for entity in instance["entities"] for job in entity["jobs"]}
        facts["tenant"] = tuple(tenant[name[job["id"]]] for job in jobs)
        facts["tenants"] = tuple(Tenant(e["id"], e["weight"], e["policy"]) for e in instance["entities"])
        # The original's fifo tenants take jobs in the order in which they are listed.
        facts["waited_s"] = np.arange(len(jobs), 0.0, -1.0)
    problem = by_hand({kind: instance["cluster_spec"][kind] for kind in types}, *ways, **facts)
    if policy.endswith("SLOs"):
        deadline_s = np.array([instance["SLOs"].get(str(job["id"]), np.inf) for job in jobs], dtype=float)
        problem = replace(problem, jobs=replace(problem.jobs, deadline_s=deadline_s))
    return problem
