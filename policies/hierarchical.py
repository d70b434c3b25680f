"""Fairness between tenants, and among the jobs of each tenant by its own policy; trees of any depth."""

from __future__ import annotations

import numpy as np

from policies.engine.filling import fill
from policies.engine.sharing import Fair, FairJobs, FairTenants, QueuedJobs, Share
from policies.errors import ProblemError
from policies.problem import Allocation, Floats, Ints, Problem, Tenant
from policies.program import Program
from policies.reference import proportional_rates
from policies.registry import policy


@policy("hierarchical", reads=("tenant",))
def hierarchical(problem: Problem) -> Allocation:
    """v_m = g_m E_m / P_m rises for all unsaturated jobs at once, at rates that tenants pass down
    by weight (fairness) or to the earliest (fifo)

    The value is the level of the lowest tenant below the root, per unit of its weight.
    """
    program = Program(problem)
    tree = _Tree(problem)
    result = fill(program, tree.at_caps, unit=proportional_rates(problem) / problem.jobs.gpus)
    return program.allocation("hierarchical", result.point(value=tree.lowest(result.v)))


class _Tree:
    """The tenants that have jobs, and the tenants above them, by path. The root has the empty path.

    A tenant that is not in the problem is fair and has weight 1.
    """

    def __init__(self, problem: Problem) -> None:
        self.jobs = problem.jobs
        self.tenants = {tenant.name: tenant for tenant in problem.tenants}
        # The rows of each tenant's own jobs.
        self.rows: dict[str, Ints] = {}
        # The paths directly below each path.
        self.children: dict[str, list[str]] = {"": []}
        path_of = np.array(problem.jobs.tenant, dtype=object)
        for path in sorted(set(problem.jobs.tenant)):
            self.rows[path] = np.flatnonzero(path_of == path)
            self._add(path)
        for path, below in self.children.items():
            if not path or not below:
                continue
            if path in self.rows:
                job = problem.jobs.ids[self.rows[path][0]]
                raise ProblemError(
                    f"job '{job}': tenant '{path}' has tenants below it ('{below[0]}'), "
                    "so its jobs must belong to one of them"
                )
            if self.tenant(path).policy == "fifo":
                raise ProblemError(
                    f"tenant '{path}': fifo orders jobs, but it has tenants below it ('{below[0]}')"
                )

    def _add(self, path: str) -> None:
        """Add a path and the paths above it to the tree."""
        if path in self.children:
            return
        self.children[path] = []
        above = path.rpartition("/")[0]
        if path:
            self._add(above)
            self.children[above].append(path)

    def tenant(self, path: str) -> Tenant:
        """Return the tenant with this path; if it is not in the problem, a fair tenant of weight 1."""
        return self.tenants.get(path) or Tenant(path)

    def at_caps(self, cap: Floats) -> Fair:
        """Return the tree for `fill`, in which each job stops at its cap."""
        root = self._node("", cap)
        # The root is not a tenant, so it is not fifo.
        assert isinstance(root, Fair)
        return root

    def lowest(self, v: Floats) -> float:
        """Return the least Σ v / weight of the tenants below the root; without tenants, of the jobs."""
        jobs, below = self.jobs, self.children[""]
        if not below:
            return float((v / jobs.weight).min())
        top = np.array([path.partition("/")[0] for path in jobs.tenant], dtype=object)
        levels = [float((v * jobs.count)[top == path].sum()) / self.tenant(path).weight for path in below]
        if "" in self.rows:
            # Jobs without a tenant count as one more tenant.
            levels.append(float((v * jobs.count)[top == ""].sum()))
        return min(levels)

    def _node(self, path: str, cap: Floats) -> Share:
        if path in self.rows and not self.children[path]:
            return self._jobs(path, cap)
        paths = list(self.children[path])
        children = [self._node(below, cap) for below in paths]
        weight = np.array([self.tenant(below).weight for below in paths])
        if path in self.rows:
            # Jobs without a tenant form one more child of weight 1.
            children.append(self._jobs(path, cap))
            weight = np.append(weight, 1.0)
        room = np.array([child.room for child in children])
        return FairTenants(weight, room, np.ones(len(children)), children=children)

    def _jobs(self, path: str, cap: Floats) -> Share:
        rows, jobs = self.rows[path], self.jobs
        if path and self.tenant(path).policy == "fifo":
            # Rows are sorted by id, so ties go by id.
            rows = rows[np.argsort(-jobs.waited_s[rows], kind="stable")]
            return QueuedJobs(rows, cap[rows], jobs.count[rows].astype(float))
        return FairJobs(jobs.weight[rows], cap[rows], jobs.count[rows].astype(float), rows=rows)
