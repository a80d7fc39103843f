"""Explorers: one definition each, shown live in a notebook and on the static page of the book."""

from __future__ import annotations

from typing import Any


def show(id: str, **state: Any) -> None:
    """Show an explorer in a notebook, starting in ``state`` (values by control name).

    In JupyterLab it is live (ipywidgets and plotly); while the book is built (``PDTLIB_BOOK=1``) it leaves
    a mark that the site turns into its static form. Raises ValueError for an unknown explorer or control and
    for a value that a control cannot take.
    """
    from pdtlib.explore.notebook import show_explorer

    show_explorer(id, state)
