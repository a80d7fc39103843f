"""How the outputs that only this book has become HTML: figures, explorers, exercises, predictions.

Registered with MyST-NB through the entry point ``myst_nb.mime_renderers``. Each output is wrapped in
``<div class="pdt-output" data-pdt="kind">``; :mod:`pdtlib.book.pages` loads a kind's script and style
on those pages alone that hold one.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PREFIX = "application/vnd.pdtlib."
PLOTLY = "application/vnd.plotly.v1+json"


def figure_html(payload: dict[str, Any], env: BuildEnvironment) -> str:
    """A plotly figure: its alternative text for readers without the drawing, its data as JSON."""
    layout = payload.get("layout", {})
    alt = layout.get("meta", {}).get("alt") if isinstance(layout.get("meta"), dict) else None
    if not alt:
        raise ValueError("a figure without layout.meta.alt; show it with pdtlib.book.figure(plot, alt=...)")
    height = int(layout.get("height", 360))
    return (
        f'<div class="pdt-figure" data-figure role="img" aria-label="{html.escape(alt)}"'
        f' style="min-height: {height}px">'
        f'<script type="application/json">{script_json(payload)}</script></div>'
        f"<noscript><p>{html.escape(alt)}</p></noscript>"
    )


def explorer_html(payload: dict[str, Any], env: BuildEnvironment) -> str:
    """An explorer's static widget, in the state that the cell asked for; its table is noted for the site."""
    from pdtlib.explore import page

    name, state = payload["id"], payload.get("state", {})
    number = env.new_serialno(f"pdtlib-explorer-{name}")
    key = f"{name}-{number + 1}" if number else name
    tables(env).setdefault(env.docname, {}).update(page.files(name, state, key))
    return page.html(name, state, key)


def exercise_html(payload: dict[str, Any], env: BuildEnvironment) -> str:
    """An exercise: statement, editor, hints and folded solution."""
    from pdtlib.exercises import page

    return page.html(payload["id"])


def prediction_html(payload: dict[str, Any], env: BuildEnvironment) -> str:
    """A question that the reader answers with a number before reading on."""
    from pdtlib.explore import prediction

    return prediction.static_html(payload)


def dashboard_html(payload: dict[str, Any], env: BuildEnvironment) -> str:
    """The dashboard that opens the files of the reader's own run."""
    from pdtlib.explore import dashboard

    return dashboard.html()


KINDS: dict[str, tuple[str, Callable[[dict[str, Any], BuildEnvironment], str]]] = {
    PLOTLY: ("figure", figure_html),
    PREFIX + "explorer+json": ("explorer", explorer_html),
    PREFIX + "exercise+json": ("exercise", exercise_html),
    PREFIX + "prediction+json": ("prediction", prediction_html),
    PREFIX + "dashboard+json": ("dashboard", dashboard_html),
}


class Renderers:
    """The plugin that MyST-NB loads."""

    mime_priority_overrides: ClassVar[list[tuple[str, str, int]]] = [
        (builder, mime, priority)
        for priority, mime in enumerate(KINDS, start=1)
        for builder in ("html", "dirhtml", "singlehtml")
    ]

    @staticmethod
    def handle_mime(renderer: Any, data: Any, inline: bool) -> list[nodes.Element] | None:
        """The nodes of one output, or ``None`` for the types that are not ours."""
        if data.mime_type not in KINDS or inline:
            return None
        kind, render = KINDS[data.mime_type]
        payload = data.content if isinstance(data.content, dict) else json.loads(data.string)
        text = (
            f'<div class="pdt-output" data-pdt="{kind}">{render(payload, renderer.renderer.sphinx_env)}</div>'
        )
        return [nodes.raw(text=text, format="html", classes=["output"])]


def script_json(payload: Any) -> str:
    """JSON that can stand inside a ``<script>`` element, whatever its strings hold."""
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def tables(env: BuildEnvironment) -> dict[str, dict[str, bytes]]:
    """The explorers' tables of each page, by page and file name; kept with Sphinx's environment."""
    if not hasattr(env, "pdtlib_tables"):
        env.pdtlib_tables = {}  # type: ignore[attr-defined]
    found: dict[str, dict[str, bytes]] = env.pdtlib_tables  # type: ignore[attr-defined]
    return found


def purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """``env-purge-doc``: the page is read again, or gone."""
    tables(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: Iterable[str], other: BuildEnvironment) -> None:
    """``env-merge-info``: what a parallel reader has found."""
    for docname in docnames:
        if docname in tables(other):
            tables(env)[docname] = tables(other)[docname]
