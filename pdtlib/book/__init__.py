"""Building the book: the Sphinx extension, the notebooks' helpers, the normaliser, the vendored front end.

A chapter uses five names: ``excerpt`` shows pdtlib's own source, ``number`` puts a computed value
into prose, ``figure`` shows a figure of ``pdtlib.figures``, ``run_lab`` runs a lab and
``run_program`` a program on several processes. Nothing here is imported by the rest of pdtlib, and
importing this package loads nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdtlib.book.lab import run_lab, run_program
from pdtlib.book.notebook import excerpt, figure, number

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["excerpt", "figure", "number", "run_lab", "run_program", "setup"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; ``_config.yml`` names this package under ``extra_extensions``."""
    from pdtlib.book import extension

    return extension.setup(app)
