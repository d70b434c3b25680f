"""What the registry calls things, in the words of someone who has to provide them."""

from __future__ import annotations

FACTS = {
    "steps_left": "steps left",
    "waited_s": "time waited",
    "isolated_s": "isolated time",
    "deadline_s": "deadlines and their steps left, if any",
    "tenant": "tenants",
    "price_per_gpu_hour": "prices",
}
MODIFIERS = {
    "packing": "two jobs may share GPUs, where the problem's `pairs` say that this gains anything",
    "blind": "all types count as equally fast, as if rates were unknown; for comparison",
}
