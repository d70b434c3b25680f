"""Why a job waits, runs where it runs, or how it ended. Read-only: nothing here changes the state or decides anything.

explain(state, "12")            an Explanation: a stable reason code, plain words, evidence, what would change it
render(explanation)             the same for people, in a few aligned lines
"""

from scheduler.explain.answer import REASONS, Change, Explanation, Holder, Reason, Way
from scheduler.explain.reasons import explain
from scheduler.explain.wording import render

__all__ = ["REASONS", "Change", "Explanation", "Holder", "Reason", "Way", "explain", "render"]
