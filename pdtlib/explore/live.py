"""An explorer under a kernel: ipywidgets for its controls, a plotly FigureWidget for its figure.

Needs ipywidgets, plotly and anywidget (``pip install pdtlib[book]``); the browser never imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from pdtlib.explore.controls import Choice, Control, ControlError, Number, Player, Slider, Text, Toggle
from pdtlib.explore.explorer import Explorer
from pdtlib.explore.form import fits_in_segments
from pdtlib.explore.markup import legend_html, notes_html, readouts_html, table_html
from pdtlib.explore.view import View
from pdtlib.figures.theme import LIGHT, PICK, resolve
from pdtlib.figures.words import say

STYLE = Path(__file__).with_name("front") / "explorer.css"


class Live:
    """An explorer's widget: ``widget`` is displayed, ``inputs`` are its controls, ``figure`` its figure."""

    def __init__(self, explorer: Explorer, state: Mapping[str, str]) -> None:
        self.explorer = explorer
        self.inputs = {control.name: _input(control, state[control.name]) for control in explorer.controls}
        self.errors = {control.name: widgets.HTML() for control in explorer.controls}
        self.problem = widgets.HTML()
        self.summary, self.words = widgets.HTML(), widgets.HTML()
        self.figure = go.FigureWidget()
        self.panels = [LivePanel() for _ in explorer.view_of(state).panels]
        self.widget = self._assemble()
        for entry in self.inputs.values():
            entry.observe(self._moved, names="value")
        self._moved()

    def state(self) -> dict[str, str]:
        """The controls' state, as keys by name."""
        return {
            control.name: control.key(self.inputs[control.name].value) for control in self.explorer.controls
        }

    def _moved(self, _change: object = None) -> None:
        for message in (*self.errors.values(), self.problem):
            message.value = ""
        self._show_what_applies()
        try:
            view = self.explorer.view_of(self.state())
        except ControlError as error:
            self.errors.get(error.field, self.problem).value = _error_html(str(error))
        except ValueError as error:
            self.problem.value = _error_html(str(error))
        else:
            self._present(view)

    def _present(self, view: View) -> None:
        data = view.to_dict()
        for name, count in data["limits"].items():
            _limit(self.inputs[name], self.explorer.control(name), count)
        self.summary.value = _styled(
            f'<p class="pdt-summary" style="min-height:0">{escape(view.summary)}</p>'
        )
        table = (
            f"<details><summary>{escape(say('page.table'))}</summary>{table_html(data['table'])}</details>"
        )
        self.words.value = _styled(legend_html(data) + readouts_html(data) + notes_html(data) + table)
        _draw(self.figure, data["figure"])
        for panel, place in zip(data.get("panels", ()), self.panels, strict=True):
            place.show(panel)
        name = data["figure"]["layout"].get("meta", {}).get(PICK)
        for trace in self.figure.data if name else ():
            trace.on_click(partial(self._picked, name))

    def _picked(self, name: str, trace: Any, points: Any, _state: object = None) -> None:
        """A click on a point that stands for a key of control ``name``."""
        for index in points.point_inds[:1]:
            key = trace.customdata
            for at in index if isinstance(index, list | tuple) else (index,):
                key = key[at]
            value = self.explorer.control(name).parse(str(key))
            entry = self.inputs[name]
            entry.value = str(value) if isinstance(entry, widgets.Text) else value

    def _show_what_applies(self) -> None:
        state = self.state()
        for control in self.explorer.controls:
            if control.when:
                shown = control.applies(state)
                self.inputs[control.name].layout.display = "" if shown else "none"

    def _assemble(self) -> widgets.Widget:
        style = widgets.HTML(f"<style>{STYLE.read_text(encoding='utf-8')}</style>")
        head = widgets.HTML(
            _styled(
                f'<p class="pdt-title">{escape(self.explorer.title)}</p>'
                f'<p class="pdt-lead">{escape(self.explorer.lead)}</p>'
            )
        )
        controls: list[widgets.Widget] = []
        group = None
        for control in self.explorer.controls:
            if control.group and control.group != group:
                controls.append(widgets.HTML(f"<b>{escape(control.group)}</b>"))
            group = control.group
            controls.append(self._labelled(control))
        left = widgets.VBox(controls, layout=widgets.Layout(flex="0 1 26rem"))
        answer = widgets.VBox(
            [self.summary, self.problem, self.figure, self.words, *(panel.widget for panel in self.panels)],
            layout=widgets.Layout(flex="1 1 30rem"),
        )
        body = widgets.HBox([left, answer], layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([style, head, body])

    def _labelled(self, control: Control) -> widgets.Widget:
        entry, error = self.inputs[control.name], self.errors[control.name]
        entry.description = control.label
        entry.style.description_width = "11rem"
        entry.tooltip = control.help
        if isinstance(control, Player):
            return widgets.VBox([entry, _play_buttons(entry), error])
        return widgets.VBox([entry, error])


def live(explorer: Explorer, state: Mapping[str, str]) -> widgets.Widget:
    """The explorer's widget, starting in ``state``."""
    return Live(explorer, state).widget


def _draw(place: go.FigureWidget, figure: dict[str, Any]) -> None:
    drawn = go.Figure(resolve(figure, LIGHT))
    drawn.layout.paper_bgcolor = LIGHT["paper"]  # a kernel cannot know the notebook's theme
    place.data = ()
    place.add_traces(drawn.data)
    place.layout = drawn.layout


class LivePanel:
    """A panel of a view: its words above its figure, its table and texts below; ``widget`` holds all."""

    def __init__(self) -> None:
        self.above, self.below = widgets.HTML(), widgets.HTML()
        self.figure = go.FigureWidget()
        self.place = widgets.VBox([self.figure])
        self.widget = widgets.VBox([self.above, self.place, self.below])

    def show(self, panel: Mapping[str, Any]) -> None:
        """Show a panel as :meth:`View.to_dict` gives it."""
        title, summary = escape(panel["title"]), escape(panel["summary"])
        self.above.value = _styled(f'<p class="pdt-panel-title">{title}</p><p>{summary}</p>')
        self.place.layout.display = "" if panel["figure"] else "none"
        if panel["figure"]:
            _draw(self.figure, panel["figure"])
        table = table_html(panel["table"]) if panel["table"] else ""
        texts = "".join(
            f"<p>{escape(file['name'])}</p><pre>{escape(file['text'])}</pre>" for file in panel["files"]
        )
        self.below.value = _styled(legend_html(panel) + table + texts)


def _input(control: Control, key: str) -> Any:
    value = control.parse(key)
    if isinstance(control, Toggle):
        return widgets.Checkbox(value=value, indent=False, layout=_wide())
    if isinstance(control, Slider):
        return widgets.SelectionSlider(options=_options(control), value=value, layout=_wide())
    if isinstance(control, Choice):
        kind = widgets.ToggleButtons if fits_in_segments(control) else widgets.Dropdown
        shown = kind(options=_options(control), value=value, layout=_wide())
        if isinstance(shown, widgets.ToggleButtons):
            shown.style.button_width = "auto"
        return shown
    assert isinstance(control, Number | Text)
    return widgets.Text(value=key, continuous_update=False, layout=_wide())


def _wide() -> widgets.Layout:
    """A layout of its own for each input: one is hidden without the others."""
    return widgets.Layout(width="auto", max_width="26rem")


def _options(control: Choice) -> list[tuple[str, Any]]:
    return [(text, value) for value, text in control.options]


def _limit(slider: Any, control: Control, count: int) -> None:
    """Leave a slider its first ``count`` options."""
    assert isinstance(control, Slider)
    options = _options(control)[:count]
    if len(slider.options) != count:
        value = slider.value
        values = [each for _, each in options]
        slider.options = options
        slider.value = value if value in values else values[-1]


def _play_buttons(slider: Any) -> widgets.Widget:
    """Play through a slider's options."""
    play = widgets.Play(min=0, max=len(slider.options) - 1, interval=900, description=say("page.play"))

    def to_slider(change: Mapping[str, Any]) -> None:
        slider.index = min(change["new"], len(slider.options) - 1)

    def to_play(_change: object) -> None:
        play.max = len(slider.options) - 1
        play.value = slider.index

    play.observe(to_slider, names="value")
    slider.observe(to_play, names=("value", "_options_labels"))
    return play


def _styled(html: str) -> str:
    return f'<div class="pdt-explorer" style="border:0;margin:0">{html}</div>'


def _error_html(message: str) -> str:
    return _styled(f'<p class="pdt-error" role="alert">{escape(message)}</p>')
