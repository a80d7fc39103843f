"""The panels of a view as HTML: a heading, a sentence, and a figure, a table or texts to copy.

``front/panels.js`` puts a later view's panels into the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pdtlib.explore.markup import json_script, legend_html, table_html
from pdtlib.figures.words import say


def panels_html(panels: Sequence[Mapping[str, Any]]) -> str:
    """All panels of a view, as :meth:`View.to_dict` gives them."""
    return f'<div class="pdt-panels" data-panels>{"".join(map(_panel_html, panels))}</div>' if panels else ""


def _panel_html(panel: Mapping[str, Any]) -> str:
    figure, table = panel["figure"], panel["table"]
    hidden = ' hidden=""'
    opened = "" if figure or panel["files"] else " open"
    height = figure["layout"]["height"] if figure else 0
    return (
        f'<section class="pdt-panel" data-panel="{panel["name"]}">'
        f'<p class="pdt-panel-title">{escape(panel["title"])}</p>'
        f"<p data-panel-summary>{escape(panel['summary'])}</p>"
        f'<div class="pdt-figure" data-panel-figure role="img" aria-label="{escape(panel["summary"])}" '
        f'style="min-height:{height}px"{"" if figure else hidden}>{json_script(figure)}</div>'
        f"{legend_html(panel)}"
        f'<details class="pdt-alternative"{opened}{"" if table else hidden}>'
        f"<summary>{escape(say('page.table_of_panel'))}</summary>"
        f'<div class="pdt-scroll" data-panel-table tabindex="0">{table_html(table) if table else ""}</div>'
        f"</details><div data-panel-files>{''.join(map(file_html, panel['files']))}</div></section>"
    )


def file_html(file: Mapping[str, str]) -> str:
    """A text to copy, under its name."""
    name = escape(file["name"])
    return (
        f'<div class="pdt-file"><p class="pdt-file-name"><span>{name}</span>'
        f'<button type="button" data-copy>{escape(say("page.copy"))}</button></p>'
        f'<pre tabindex="0" role="region" aria-label="{name}">{escape(file["text"])}</pre></div>'
    )
