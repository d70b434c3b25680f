"""Compute the tables of docs/throughputs.md; run as a module, write them into the document.

.venv/bin/python -m tests.traces.roofline_doc
"""

import re
from collections.abc import Iterable
from pathlib import Path

from traces.roofline import default_throughputs, footprint_gb
from traces.roofline_figures import MODELS, WORKER_TYPES

DOC = Path(__file__).resolve().parents[2] / "docs" / "throughputs.md"
SECTION = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Each table of the document by its name."""
    rates = default_throughputs()
    types = [kind.name for kind in WORKER_TYPES]
    return {
        "types": _table(
            "type|peak TFLOP/s|sustained|memory GB/s|memory GB|kernel µs|link GB/s|network GB/s|USD/GPU-h",
            (
                (
                    k.name,
                    k.peak_tflops,
                    k.sustained,
                    k.bandwidth_gb_per_s,
                    k.memory_gb,
                    k.kernel_s * 1e6,
                    k.link_gb_per_s,
                    k.network_gb_per_s,
                    k.price_per_gpu_hour,
                )
                for k in WORKER_TYPES
            ),
        ),
        "models": _table(
            "job type|batch|GFLOP/sample|MB moved/sample|footprint GB|exchanged GB|efficiency|kernels|host ms",
            (
                (
                    m.name,
                    m.batch,
                    m.gflop_per_sample,
                    m.traffic_gb_per_sample * 1e3,
                    footprint_gb(m),
                    m.exchanged_gb,
                    m.efficiency,
                    m.kernels,
                    m.host_s * 1e3,
                )
                for m in MODELS
            ),
        ),
        "rates": _table(
            "job type|" + "|".join(types),
            ((m.name, *(rates.rate(m.name, 1, kind) for kind in types)) for m in MODELS),
        ),
        "scaling": _table(
            "job type|" + "|".join(types),
            ((m.name, *(_gain(m.name, kind) for kind in types)) for m in MODELS),
        ),
    }


def _gain(model: str, kind: str) -> str:
    """How much faster 8 GPUs are than one: together / spread."""
    rates = default_throughputs()
    single_rate = rates.rate(model, 1, kind)
    return (
        f"{rates.rate(model, 8, kind) / single_rate:.1f} / {rates.rate(model, 8, kind, False) / single_rate:.1f}"
        if single_rate
        else "–"
    )


def _table(header: str, lines: Iterable[tuple[object, ...]]) -> str:
    width = header.count("|") + 1
    rows = [header, "|".join(["---"] + ["---:"] * (width - 1))]
    rows += ["|".join(_cell(value) for value in line) for line in lines]
    return "\n".join(f"| {row.replace('|', ' | ')} |" for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, float) and value < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def updated(text: str) -> str:
    """Return the document with newly computed tables."""
    current = tables()
    return SECTION.sub(lambda match: f"{match[1]}\n{current[match[2]]}\n\n{match[3]}", text)


if __name__ == "__main__":
    DOC.write_text(updated(DOC.read_text(encoding="utf-8")), encoding="utf-8")
