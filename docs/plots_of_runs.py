"""The picture of the README: the simulated day of `make day`, small enough to be committed. `make docs-plots` draws it.

The file of the picture also contains the figures, as its description, so that a test can compare them with the README.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from examples.day_demo import POLICIES, one_day
from gavel.cli.simulation.run_plots import jct_figure
from scheduler.sim.figures.summary import jct_hours

DAY = Path(__file__).parent / "images" / "day.png"
DPI = 90


def main() -> None:
    """Simulate the day under each policy, and draw how long the jobs took."""
    hours = {policy: jct_hours(one_day(policy)[0]) for policy in POLICIES}
    figure = jct_figure(hours)
    figure.set_dpi(DPI)
    figures = description({policy: float(each.mean()) for policy, each in hours.items()})
    figure.savefig(DAY, dpi=DPI, metadata={"Description": figures, "Software": None})


def description(mean_jct_h: Mapping[str, float]) -> str:
    """Return the figures of the picture as JSON: the mean job completion time under each policy, in hours."""
    return json.dumps({policy: round(hours, 2) for policy, hours in mean_jct_h.items()})


if __name__ == "__main__":
    main()
