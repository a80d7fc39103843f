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
from itertools import product
from typing import Any

from pdtlib.explore import catalog
from pdtlib.explore.controls import Control
from pdtlib.explore.explorer import Explorer
from pdtlib.explore.form import control_html
from pdtlib.explore.markup import json_script, legend_html, notes_html, readouts_html, table_html
from pdtlib.explore.panels import panels_html
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
    "copy",
    "copied",
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

    A move that is refused holds ``{"error": {...}}`` in place of a view. Panels that several views share
    stand once, in a list under "panels"; a view has their places in it.
    """
    answers = {move: _answer(explorer, {**base, **changes}) for move, changes in moves(explorer, base)}
    places: dict[str, int] = {}
    shared: list[dict[str, Any]] = []
    for answer in answers.values():
        for index, panel in enumerate(answer.get("panels", ())):
            place = places.setdefault(json.dumps(panel), len(shared))
            if place == len(shared):
                shared.append(panel)
            answer["panels"][index] = place
    return {**answers, "panels": shared} if shared else answers


def moves(explorer: Explorer, base: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Every move of the build-time table: its name and the keys it changes."""
    yield "", {}
    for control in explorer.controls:
        if not control.applies(base):
            continue
        for key in _other_keys(control, base):
            yield f"{control.name}={key}", {control.name: key}
    for names in explorer.together:
        for keys in product(*(_other_keys(explorer.control(name), base) for name in names)):
            yield "&".join(map("=".join, zip(names, keys, strict=True))), dict(zip(names, keys, strict=True))


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
            f'style="min-height:{height}px">{json_script(data["figure"])}</div>',
            f'<p class="pdt-offline">{escape(say("page.offline"))}</p>',
            legend_html(data),
            readouts_html(data),
            notes_html(data),
            '<div class="pdt-compare" data-compare hidden></div>',
            f'<details class="pdt-alternative"><summary>{escape(say("page.table"))}</summary>'
            f'<div class="pdt-scroll" data-alternative tabindex="0">{table_html(data["table"])}</div>'
            "</details>",
            panels_html(data.get("panels", ())),
            json_script(view.job, " data-job"),
        ]
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
