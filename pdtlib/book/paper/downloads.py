"""Links to the PDF and the EPUB on the site's first page, as far as they are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

NAME = "how-thousands-of-gpus-train-one-model"
FILES = {kind: f"{NAME}.{kind}" for kind in ("pdf", "epub")}
LABELS = {"pdf": "PDF", "epub": "EPUB"}
_PLACE = re.compile(r'(<div class="pdt-downloads">).*?(</div>)', re.DOTALL)  # intro.md has it, empty


def link(site: Path) -> None:
    """Fill the place for downloads on the first page with links to the files that the site has."""
    there = [kind for kind, name in FILES.items() if (site / name).is_file()]
    links = " · ".join(
        f'<a href="{FILES[kind]}" download>{LABELS[kind]}</a> '
        f"({(site / FILES[kind]).stat().st_size / 1e6:.1f} MB)"
        for kind in there
    )
    text = f"<p>Download the text with its figures: {links}</p>" if there else ""
    for path in (site / "intro.html", site / "index.html"):
        if path.is_file():
            html = path.read_text(encoding="utf-8")
            path.write_text(_PLACE.sub(rf"\g<1>{text}\g<2>", html), encoding="utf-8")


def relink(app: Sphinx, exception: Exception | None) -> None:
    """``build-finished``: a page written anew gets its links again."""
    if exception is None and app.builder.format == "html":
        link(Path(app.outdir))
