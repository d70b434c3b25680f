"""Draw the mermaid diagrams of the pages as SVG, for the documentation site, which loads no scripts.

    python -m docs.diagrams mermaid.min.js      # from the npm package mermaid; needs chromium

Each picture names the digest of its source, so that the site's build fails if a diagram has changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import subprocess
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PICTURES = DOCS / "images" / "diagrams"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
DRAW = """<div id="out"></div><script src="{script}"></script><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, flowchart: {{htmlLabels: false}},
    deterministicIds: true, fontFamily: "sans-serif"}});
mermaid.render("diagram", {source}).then(drawn => {{ document.getElementById("out").textContent = drawn.svg; }});
</script>"""


def digest(source: str) -> str:
    """Return the mark of a diagram's source in its picture."""
    return f"source:{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def picture(page: str, number: int) -> str:
    """Return the file name of the picture of a page's diagram, counted from 1."""
    return f"{page.replace('/', '-')}-{number}.svg"


def draw(source: str, script: Path) -> str:
    """Return the diagram as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(DRAW.format(script=script.resolve().as_uri(), source=json.dumps(source)))
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
        done = subprocess.run(
            ["chromium", *options, "--virtual-time-budget=20000", "--dump-dom", page.as_uri()],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
    drawn = re.search(r'<div id="out">(.+?)</div>', done.stdout, re.DOTALL)
    if drawn is None:
        raise SystemExit(f"mermaid has drawn nothing:\n{source}")
    svg = html.unescape(drawn[1]).replace("<br>", "<br/>").replace("\n", " ")
    return f"<!-- {digest(source)} -->\n{svg}\n"


def main() -> None:
    """Draw every diagram of the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", type=Path, help="mermaid.min.js")
    script = parser.parse_args().script
    PICTURES.mkdir(exist_ok=True)
    for path in sorted(DOCS.rglob("*.md")):
        page = path.relative_to(DOCS).with_suffix("").as_posix()
        for number, source in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), 1):
            (PICTURES / picture(page, number)).write_text(draw(source, script), encoding="utf-8")


if __name__ == "__main__":
    main()
