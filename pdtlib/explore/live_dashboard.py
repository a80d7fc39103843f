"""The dashboard under a kernel: upload buttons of ipywidgets and a plotly figure."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from pdtlib.explore import dashboard
from pdtlib.explore.live import STYLE
from pdtlib.explore.markup import legend_html, notes_html, readouts_html, table_html
from pdtlib.figures.theme import LIGHT, resolve
from pdtlib.figures.words import say


class LiveDashboard:
    """``widget`` is displayed; ``trace`` and ``metrics`` are its upload buttons."""

    def __init__(self) -> None:
        self.trace, self.metrics = (
            widgets.FileUpload(description=say(f"dashboard.{name}"), layout=widgets.Layout(width="auto"))
            for name in ("trace", "metrics")
        )
        self.words, self.figure = widgets.HTML(), go.FigureWidget()
        for button in (self.trace, self.metrics):
            button.observe(self._opened, names="value")
        style = widgets.HTML(f"<style>{STYLE.read_text(encoding='utf-8')}</style>")
        lead = widgets.HTML(
            f"<p><b>{escape(say('dashboard.title'))}</b><br>{escape(say('dashboard.lead'))}</p>"
        )
        self.widget = widgets.VBox([style, lead, self.trace, self.metrics, self.figure, self.words])
        self._present(dashboard.example().to_dict())

    def _opened(self, _change: object) -> None:
        if not self.trace.value:
            return
        try:
            data = dashboard.of_files(_text(self.trace), _text(self.metrics))
        except ValueError as error:
            self.words.value = f'<p role="alert">{escape(str(error))}</p>'
        else:
            self._present(data)

    def _present(self, data: dict[str, Any]) -> None:
        summary = f'<p class="pdt-summary" style="min-height:0">{escape(data["summary"])}</p>'
        parts = [summary, legend_html(data), readouts_html(data), notes_html(data), table_html(data["table"])]
        self.words.value = f'<div class="pdt-explorer" style="border:0;margin:0">{"".join(parts)}</div>'
        drawn = go.Figure(resolve(data["figure"], LIGHT))
        drawn.layout.paper_bgcolor = LIGHT["paper"]
        self.figure.data = ()
        self.figure.add_traces(drawn.data)
        self.figure.layout = drawn.layout


def _text(button: Any) -> str:
    return bytes(button.value[0]["content"]).decode("utf-8", "replace") if button.value else ""


def live() -> widgets.Widget:
    """The dashboard's widget."""
    return LiveDashboard().widget
