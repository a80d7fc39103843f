"""Controls as real form elements: labelled, usable by keyboard, readable without a script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from pdtlib.explore.controls import Choice, Control, Number, Player, Slider, Text, Toggle
from pdtlib.figures.words import say

SEGMENTS = 4  # a choice of at most so many options shows them all
SEGMENT_CHARACTERS = 20  # ... if their texts together are no longer than this


def control_html(control: Control, state: Mapping[str, str], key: str, *, limit: int | None = None) -> str:
    """A control with its label, hint and place for an error; ids start with the explorer's ``key``.

    ``limit`` is the number of a slider's options that apply in this state, if not all of them do.
    """
    id = f"{key}-{control.name}"
    current = state[control.name]
    hidden = ""
    when = ""
    if control.when:
        other, keys = control.when
        when = f' data-when="{other}" data-when-keys="{escape(json.dumps(keys))}"'
        hidden = "" if control.applies(state) else " hidden"
    parts = [f'<div class="pdt-control" data-for="{control.name}"{when}{hidden}>']
    described = f'aria-describedby="{id}-error{f" {id}-help" if control.help else ""}"'
    if isinstance(control, Toggle):
        parts.append(_toggle(control, current, id, described))
    elif isinstance(control, Slider):
        parts.append(_slider(control, current, id, described, limit))
    elif isinstance(control, Choice) and fits_in_segments(control):
        parts.append(_segments(control, current, id, described))
    elif isinstance(control, Choice):
        parts.append(_select(control, current, id, described))
    else:
        assert isinstance(control, Number | Text)
        parts.append(_typed(control, current, id, described))
    if control.help:
        parts.append(f'<p class="pdt-help" id="{id}-help">{escape(control.help)}</p>')
    parts.append(
        f'<p class="pdt-error" id="{id}-error" data-error-for="{control.name}" role="alert" hidden></p></div>'
    )
    return "\n".join(parts)


def fits_in_segments(control: Choice) -> bool:
    """Whether a choice shows all its options side by side."""
    texts = [text for _, text in control.options]
    return len(texts) <= SEGMENTS and sum(map(len, texts)) <= SEGMENT_CHARACTERS


def _label(control: Control, id: str) -> str:
    return f'<label for="{id}">{escape(control.label)}</label>'


def _toggle(control: Toggle, current: str, id: str, described: str) -> str:
    checked = " checked" if current == "on" else ""
    return (
        f'<label class="pdt-toggle"><input type="checkbox" id="{id}" name="{control.name}" '
        f'data-control="{control.name}" data-base="{current}"{checked} {described}> '
        f"{escape(control.label)}</label>"
    )


def _select(control: Choice, current: str, id: str, described: str) -> str:
    options = "".join(
        f'<option value="{escape(control.key(value))}"{" selected" if control.key(value) == current else ""}>'
        f"{escape(text)}</option>"
        for value, text in control.options
    )
    return (
        f'{_label(control, id)}<select id="{id}" name="{control.name}" data-control="{control.name}" '
        f'data-base="{escape(current)}" {described}>{options}</select>'
    )


def _segments(control: Choice, current: str, id: str, described: str) -> str:
    buttons = "".join(
        f'<label><input type="radio" name="{control.name}" value="{escape(control.key(value))}" '
        f'data-control="{control.name}"{" checked" if control.key(value) == current else ""}>'
        f"<span>{escape(text)}</span></label>"
        for value, text in control.options
    )
    return (
        f'<span class="pdt-label" id="{id}-label">{escape(control.label)}</span>'
        f'<div class="pdt-segments" id="{id}" role="radiogroup" aria-labelledby="{id}-label" '
        f'data-base="{escape(current)}" {described}>{buttons}</div>'
    )


def _slider(control: Slider, current: str, id: str, described: str, limit: int | None) -> str:
    keys = [control.key(value) for value, _ in control.options]
    texts = [text for _, text in control.options]
    text = control.text(current)
    range_input = (
        f'<input type="range" id="{id}" name="{control.name}" data-control="{control.name}" min="0" '
        f'max="{(limit or len(keys)) - 1}" step="1" value="{keys.index(current)}" '
        f'aria-valuetext="{escape(text)}" '
        f"data-base=\"{escape(current)}\" data-keys='{escape(json.dumps(keys))}' "
        f"data-texts='{escape(json.dumps(texts, ensure_ascii=False))}' {described}>"
    )
    if isinstance(control, Player):
        range_input = _player_buttons() + range_input
    return (
        f'<span class="pdt-line">{_label(control, id)}<output for="{id}" data-output>{escape(text)}'
        f"</output></span>"
        f"{range_input}"
    )


def _player_buttons() -> str:
    words = {name: escape(say(f"page.{name}")) for name in ("back", "play", "pause", "forward")}
    return (
        '<div class="pdt-player">'
        f'<button type="button" data-step="-1" aria-label="{words["back"]}">‹</button>'
        f'<button type="button" data-play data-pause="{words["pause"]}" aria-pressed="false">{words["play"]}'
        f'</button><button type="button" data-step="1" aria-label="{words["forward"]}">›</button></div>'
    )


def _typed(control: Number | Text, current: str, id: str, described: str) -> str:
    unit_text, mode = (control.unit, "decimal") if isinstance(control, Number) else ("", "text")
    unit = f'<span class="pdt-unit">{escape(unit_text)}</span>' if unit_text else ""
    options = "".join(f'<option value="{escape(key)}"></option>' for key in control.suggestions)
    return (
        f'{_label(control, id)}<span class="pdt-number-line"><input type="text" '
        f'inputmode="{mode}" '
        f'id="{id}" name="{control.name}" data-control="{control.name}" data-base="{escape(current)}" '
        f'value="{escape(current)}" list="{id}-list" spellcheck="false" {described}>{unit}</span>'
        f'<datalist id="{id}-list">{options}</datalist>'
    )
