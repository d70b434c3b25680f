"""Models that are split over the ranks of a job: schedules of their stages, and the pipeline that runs them.

    from gavel.training.parallel import Pipeline

Importing this package imports no PyTorch: planners use its schedules. docs/pipelines.md is the page for users.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gavel.training.parallel.plan import Plan, read_plan

if TYPE_CHECKING:
    from gavel.training.parallel.pipeline import Pipeline
    from gavel.training.parallel.profiler import profile

__all__ = ["Pipeline", "Plan", "profile", "read_plan"]

_MODULE_OF = {"Pipeline": "pipeline", "profile": "profiler"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
