"""An explorer as a piece of a static page, and the table that answers the reader's first move.

The fragment holds everything the first paint needs: controls as form elements, the default view's words and
numbers, its figure as JSON and the same as a table. ``front/explorer.js`` brings it to life; what it relies
on, and what tests may rely on, stands in ``front/README.md``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape
from typing import Any

from pdtlib.explore import catalog
from pdtlib.explore.controls import Control
from pdtlib.explore.explorer import Explorer
from pdtlib.explore.form import control_html
from pdtlib.explore.view import View
from pdtlib.figures.words import say

WORDS_IN_PAGE = (
    "starting",
    "computing",
    "unreachable",
    "linked",
    "pin",
    "unpin",
    "pinned",
    "carried",
    "not_carried",
    "adopted",
    "no_job",
)


def html(id: str, state: Mapping[str, Any] | None = None, key: str | None = None) -> str:
    """The fragment for an explorer that starts in ``state``.

    ``key`` (the id, if omitted) tells several of one explorer on a page apart.
    """
    explorer = catalog.get(id)
    key = key or id
    base = explorer.state(state)
    view = explorer.view_of(base)
    table_name = _table_file(explorer, base, key)[0]
    return "\n".join(
        [
            f'<section class="pdt-explorer" id="explorer-{key}" data-explorer="{id}" data-key="{key}" '
            f'data-state="table" data-table="{table_name}" data-title="{escape(explorer.title)}" '
            f'data-words="{escape(_words())}" aria-labelledby="{key}-title">',
            f'<div class="pdt-head"><p class="pdt-title" id="{key}-title">{escape(explorer.title)}</p>'
            f'<p class="pdt-lead">{escape(explorer.lead)}</p></div>',
            '<div class="pdt-body"><div class="pdt-ask">',
            '<p class="pdt-summary" data-summary role="status" aria-live="polite">'
            f"{escape(view.summary)}</p>",
            f'<form class="pdt-controls" autocomplete="off" '
            f'aria-label="{escape(say("page.controls", title=explorer.title))}">',
            *_fieldsets(explorer, base, view.limits or {}, key),
            "</form></div>",
            '<div class="pdt-main">',
            view_html(view),
            "</div></div>",
            _tools_html(explorer, has_job=bool(view.job)),
            "</section>",
        ]
    )


def files(id: str, state: Mapping[str, Any] | None = None, key: str | None = None) -> dict[str, bytes]:
    """The files that the fragment needs under ``vendor/pdt/tables/``, by name."""
    explorer = catalog.get(id)
    name, content = _table_file(explorer, explorer.state(state), key or id)
    return {name: content}


def table(explorer: Explorer, base: Mapping[str, str]) -> dict[str, Any]:
    """Views by move: "" is ``base``, "a=x" what changing control a to x leads to, "a=x&b=y" a joint move.

    A move that is refused holds ``{"error": {...}}`` in place of a view.
    """
    return {move: _answer(explorer, {**base, **changes}) for move, changes in moves(explorer, base)}


def moves(explorer: Explorer, base: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Every move of the build-time table: its name and the keys it changes."""
    yield "", {}
    for control in explorer.controls:
        if not control.applies(base):
            continue
        for key in _other_keys(control, base):
            yield f"{control.name}={key}", {control.name: key}
    for first, second in explorer.pairs:
        for one in _other_keys(explorer.control(first), base):
            for two in _other_keys(explorer.control(second), base):
                yield f"{first}={one}&{second}={two}", {first: one, second: two}


def _other_keys(control: Control, base: Mapping[str, str]) -> list[str]:
    return [key for key in control.moves() if key != base[control.name]]


def _answer(explorer: Explorer, state: Mapping[str, str]) -> dict[str, Any]:
    try:
        return explorer.view_of(state).to_dict()
    except ValueError as error:
        message = {
            "type": type(error).__name__,
            "message": str(error),
            "field": getattr(error, "field", None),
        }
        return {"error": message}


def _table_file(explorer: Explorer, base: Mapping[str, str], key: str) -> tuple[str, bytes]:
    content = _table_bytes(explorer.id, tuple(base.items()))
    return f"{key}-{hashlib.sha256(content).hexdigest()[:12]}.json", content


@lru_cache(maxsize=4)  # a page asks twice: for its fragment and for the file
def _table_bytes(id: str, base: tuple[tuple[str, str], ...]) -> bytes:
    answers = table(catalog.get(id), dict(base))
    return json.dumps(answers, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _words() -> str:
    return json.dumps({name: say(f"page.{name}") for name in WORDS_IN_PAGE}, ensure_ascii=False)


def _fieldsets(
    explorer: Explorer, base: Mapping[str, str], limits: Mapping[str, int], key: str
) -> Iterator[str]:
    groups = dict.fromkeys(control.group for control in explorer.controls)
    for group in groups:
        inside = [c for c in explorer.controls if c.group == group]
        legend = f"<legend>{escape(group)}</legend>" if group else ""
        controls = "\n".join(
            control_html(control, base, key, limit=limits.get(control.name)) for control in inside
        )
        yield f"<fieldset>{legend}\n{controls}\n</fieldset>"


def view_html(view: View) -> str:
    """A view as the page first paints it: figure, legend, numbers, notes and table."""
    data = view.to_dict()
    height = data["figure"]["layout"]["height"]
    return "\n".join(
        [
            '<p class="pdt-problem" data-problem role="alert" hidden></p>',
            f'<div class="pdt-figure" data-figure role="img" aria-label="{escape(view.summary)}" '
            f'style="min-height:{height}px">{_json_script(data["figure"])}</div>',
            f'<p class="pdt-offline">{escape(say("page.offline"))}</p>',
            legend_html(data),
            readouts_html(data),
            notes_html(data),
            '<div class="pdt-compare" data-compare hidden></div>',
            f'<details class="pdt-alternative"><summary>{escape(say("page.table"))}</summary>'
            f'<div class="pdt-scroll" data-alternative tabindex="0">{table_html(data["table"])}</div>'
            "</details>",
            _json_script(view.job, " data-job"),
        ]
    )


def _json_script(data: Any, attributes: str = "") -> str:
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


def _tools_html(explorer: Explorer, *, has_job: bool) -> str:
    actions = ["reset", "link", "pin"]
    if explorer.adopt_job is not None:
        actions += ["carry", "adopt", "download"]
    off = "" if has_job else ' aria-disabled="true"'
    attributes = {"adopt": " hidden", "carry": off, "download": off}
    buttons = "".join(
        f'<button type="button" data-action="{action}"{attributes.get(action, "")}>'
        f"{escape(say(f'page.{action}'))}</button>"
        for action in actions
    )
    return (
        f'<div class="pdt-tools">{buttons}<span class="pdt-status" data-status role="status" '
        'aria-live="polite"></span></div>'
    )
