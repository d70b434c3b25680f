"""Why a job waits, runs where it runs, or how it ended. Read-only: nothing here changes the state or decides anything.

explain(state, "12")            return an Explanation: a stable reason code, a text, evidence, and remedies
render(explanation)             return the explanation as a few aligned lines of text
"""

from scheduler.explain.answer import REASONS, Change, Explanation, Holder, Reason, Way
from scheduler.explain.reasons import explain
from scheduler.explain.wording import render

__all__ = ["REASONS", "Change", "Explanation", "Holder", "Reason", "Way", "explain", "render"]
