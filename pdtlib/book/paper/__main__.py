"""``python -m pdtlib.book.paper [pdf] [epub]``: the book on paper, put beside the site's first page."""

from __future__ import annotations

import sys
from pathlib import Path

from pdtlib.book.paper import downloads, epub, pdf

SITE = Path(__file__).parents[3] / "_build/html"
KINDS = {"pdf": pdf.write, "epub": epub.write}


def main(kinds: list[str]) -> int:
    """Write the kinds asked for (default: both) and link them from the site; returns the exit status."""
    if unknown := set(kinds) - set(KINDS):
        print(f"{', '.join(sorted(unknown))}: valid are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    if not (SITE / "intro.html").is_file():
        print(f"There is no site in {SITE}: make book", file=sys.stderr)
        return 1
    for kind in kinds or KINDS:
        target = KINDS[kind](SITE, SITE / downloads.FILES[kind])
        print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")
    downloads.link(SITE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
