"""Models that are split over the ranks of a job: schedules of their stages, and the pipeline that runs them.

    from gavel.training.parallel import Pipeline

Importing this package imports no PyTorch: planners use its schedules. docs/pipelines.md is the page for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gavel.training.parallel.plan import Plan, read_plan

if TYPE_CHECKING:
    from gavel.training.parallel.pipeline import Pipeline

__all__ = ["Pipeline", "Plan", "read_plan"]


def __getattr__(name: str) -> Any:
    if name != "Pipeline":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from gavel.training.parallel.pipeline import Pipeline

    return Pipeline
