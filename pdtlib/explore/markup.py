"""The parts of a view as pieces of HTML: legend, numbers, sentences, table.

``front/render.js`` makes the same of a later view.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any


def json_script(data: Any, attributes: str = "") -> str:
    """Plain data inside a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'<script type="application/json"{attributes}>{text}</script>'


def legend_html(view: Mapping[str, Any]) -> str:
    """The legend of a view (as :meth:`View.to_dict` gives it)."""
    return f'<ul class="pdt-legend" data-legend>{"".join(map(_swatch_html, view["legend"]))}</ul>'


def readouts_html(view: Mapping[str, Any]) -> str:
    """The numbers of a view."""
    return f'<dl class="pdt-readouts" data-readouts>{"".join(map(_readout_html, view["readouts"]))}</dl>'


def notes_html(view: Mapping[str, Any]) -> str:
    """The further sentences of a view."""
    return f'<div class="pdt-notes" data-notes>{"".join(f"<p>{escape(n)}</p>" for n in view["notes"])}</div>'


def _swatch_html(swatch: Mapping[str, Any]) -> str:
    pattern = f' data-pattern="{escape(swatch["pattern"])}"' if swatch.get("pattern") else ""
    text = f'<span class="pdt-value">{escape(swatch["text"])}</span>' if swatch.get("text") else ""
    return (
        f'<li data-swatch="{swatch["name"]}">'
        f'<span class="pdt-swatch" data-color="{swatch["color"]}"{pattern} aria-hidden="true"></span>'
        f'<span class="pdt-label">{escape(swatch["label"])}</span>{text}</li>'
    )


def _readout_html(readout: Mapping[str, Any]) -> str:
    value = f' data-value="{readout["value"]}"' if "value" in readout else ""
    tone = f' data-tone="{readout["tone"]}"' if "tone" in readout else ""
    note = f'<span class="pdt-note">{escape(readout["note"])}</span>' if "note" in readout else ""
    return (
        f'<div data-readout="{readout["name"]}"{value}{tone}><dt>{escape(readout["label"])}</dt>'
        f'<dd><span class="pdt-number">{escape(readout["text"])}</span>{note}</dd></div>'
    )


def table_html(data: Mapping[str, Any]) -> str:
    """A table of texts as HTML, the first cell of each row its heading."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in data["columns"])
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in data["rows"]
    )
    return (
        f"<table><caption>{escape(data['caption'])}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
