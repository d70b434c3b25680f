"""The picture of the README: what `make demo` draws, small enough to be committed. `make docs-plots` draws it anew.

The figures that it shows are also in the file, as its description: a test reads them, and says when they have changed.
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
    """Simulate the demo's day under its policies, and draw how long the jobs took."""
    hours = {policy: jct_hours(one_day(policy)[0]) for policy in POLICIES}
    figure = jct_figure(hours)
    figure.set_dpi(DPI)
    said = described({policy: float(each.mean()) for policy, each in hours.items()})
    figure.savefig(DAY, dpi=DPI, metadata={"Description": said, "Software": None})


def described(mean_jct_h: Mapping[str, float]) -> str:
    """What the picture says, as text."""
    return json.dumps({policy: round(hours, 2) for policy, hours in mean_jct_h.items()})


if __name__ == "__main__":
    main()
