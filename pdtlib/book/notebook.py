"""What a chapter's code cells call to show source, numbers and figures."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


def excerpt(obj: Callable[..., Any] | type | ModuleType, *, upto: str | None = None) -> None:
    """Show the source of a function, class or module of pdtlib, with its file and first line.

    ``upto`` ends the excerpt before the first line that contains it, for a long function of which
    only the beginning is discussed. Raises ``ValueError`` when no line contains it, so an excerpt
    can't silently grow when the source changes.
    """
    from IPython.display import Markdown, display

    display(Markdown(excerpt_markdown(obj, upto=upto)))


def excerpt_markdown(obj: Callable[..., Any] | type | ModuleType, *, upto: str | None = None) -> str:
    """The Markdown that :func:`excerpt` shows: a caption line and a fenced block."""
    target = inspect.unwrap(obj) if callable(obj) else obj
    lines, first = inspect.getsourcelines(target)
    if upto is not None:
        end = next((i for i, line in enumerate(lines) if i > 0 and upto in line), None)
        if end is None:
            raise ValueError(
                f"excerpt: upto={upto!r}; valid: text of a line of {getattr(obj, '__qualname__', obj)}"
            )
        lines = lines[:end]
    source = textwrap.dedent("".join(lines)).rstrip()
    path = Path(inspect.getsourcefile(target) or "")
    if path.is_relative_to(ROOT):
        path = path.relative_to(ROOT)
    fence = "`" * 3
    while fence in source:
        fence += "`"
    return f"`{path.as_posix()}`, line {max(first, 1)}:\n\n{fence}python\n{source}\n{fence}\n"


def number(name: str, value: float | int | str, template: str = "{}") -> None:
    """Give a computed value a name that prose can show: ``{glue:text}`name```.

    ``template`` formats it, for example ``"{:.1f} GB"``; a string (from ``pdtlib.plan.units``) needs
    none. The value is stored in the cell's output, so nbval compares it: a number in prose can't
    drift from what the library computes.
    """
    from myst_nb import glue

    glue(name, template.format(value), display=False)


def figure(plot: Mapping[str, Any], *, alt: str) -> None:
    """Show a figure of ``pdtlib.figures`` (a dict with ``data`` and ``layout``).

    ``alt`` says in words what the figure shows, for readers who can't see it and for places where it
    can't be drawn. JupyterLab draws it by plotly's extension, the book's page by its own script.
    """
    from IPython.display import display

    if not alt.strip():
        raise ValueError("figure: alt=''; valid: a sentence that says what the figure shows")
    layout = {**plot.get("layout", {})}
    layout["meta"] = {**layout.get("meta", {}), "alt": alt}
    bundle = {
        "application/vnd.plotly.v1+json": {
            "data": list(plot["data"]),
            "layout": layout,
            "config": {"displaylogo": False, "responsive": True, **plot.get("config", {})},
        },
        "text/plain": alt,
    }
    display(bundle, raw=True)
