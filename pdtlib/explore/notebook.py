"""Showing an explorer in a notebook: live under a kernel, a mark for the site while the book is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from IPython.display import display

from pdtlib.explore.catalog import get

MIME = "application/vnd.pdtlib.explorer+json"


def show_explorer(id: str, state: Mapping[str, Any]) -> None:
    """Display the explorer; see :func:`pdtlib.explore.show`."""
    explorer = get(id)
    base = explorer.state(state)
    if os.environ.get("PDTLIB_BOOK") == "1":
        changed = {name: key for name, key in base.items() if name in state}
        mark = {"id": id, "state": changed}
        text = f"{explorer.title}: {explorer.view_of(base).summary}"
        display({MIME: mark, "text/plain": text}, raw=True)
        return
    try:
        from pdtlib.explore.live import live
    except ModuleNotFoundError as error:
        raise ImportError(f"a live explorer needs {error.name}: pip install 'pdtlib[book]'") from error
    display(live(explorer, base))
