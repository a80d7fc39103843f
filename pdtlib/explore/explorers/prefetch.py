"""Explorer ``prefetch``: gather the next layer while this one computes, and what it saves and holds."""

from __future__ import annotations

from pdtlib.explore.controls import Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import prefetch as drawing
from pdtlib.figures.amounts import time_words
from pdtlib.figures.overlap import LANES
from pdtlib.figures.words import say
from pdtlib.plan.overlap import Overlap, prefetch_timeline
from pdtlib.plan.units import percent_text

LAYERS = (2, 4, 8, 12, 16, 24, 32, 48)
TIMES = (5, 10, 20, 30, 40, 50, 60, 80, 100, 150, 200)  # ms
DEPTHS = range(5)
UNEVEN = (1, 2, 3, 4, 6, 8)
EVERY = 4  # with uneven layers, every fourth is larger


def _times(values: Values, name: str) -> list[float]:
    """Seconds a layer; every fourth layer has as many times the parameters and the work."""
    return [
        values[name] / 1e3 * (values["uneven"] if layer % EVERY == EVERY - 1 else 1)
        for layer in range(values["layers"])
    ]


def _line(values: Values, depth: int) -> Overlap:
    return prefetch_timeline(_times(values, "gather"), _times(values, "compute"), depth=depth)


def _view(values: Values) -> View:
    lines = [_line(values, depth) for depth in DEPTHS]
    depth = values["depth"]
    chosen = lines[depth]
    saved = lines[0].end_s - chosen.end_s
    return View(
        figure=drawing.figure(chosen, ends_s=[line.end_s for line in lines], depth=depth),
        summary=say(
            "prefetch.summary",
            layers=values["layers"],
            end=time_words(chosen.end_s),
            none=time_words(lines[0].end_s),
            waits=time_words(chosen.exposed_s),
        ),
        readouts=(
            _time("end", chosen.end_s, say("prefetch.end_note", none=time_words(lines[0].end_s))),
            _time(
                "saved",
                saved,
                say("prefetch.saved_note", share=percent_text(saved / lines[0].end_s)),
            ),
            _time("waits", chosen.exposed_s, say("prefetch.waits_note")),
            Readout(
                name="live",
                label=say("prefetch.live"),
                text=str(min(depth + 1, values["layers"])),
                value=min(depth + 1, values["layers"]),
                unit="count",
                note=say("prefetch.live_note"),
            ),
        ),
        legend=tuple(
            Swatch(
                name=part.name,
                label=say(f"prefetch.lane_{part.name}"),
                color=part.color,
                pattern=part.pattern,
            )
            for part in LANES.values()
        ),
        table=Table(
            caption=say("prefetch.table"),
            columns=tuple(say(f"prefetch.column_{name}") for name in ("depth", "time", "waits", "held")),
            rows=tuple(
                (
                    drawing.depth_words(depth),
                    time_words(line.end_s),
                    time_words(line.exposed_s),
                    str(min(depth + 1, values["layers"])),
                )
                for depth, line in zip(DEPTHS, lines, strict=True)
            ),
        ),
        notes=_notes(values),
    )


def _notes(values: Values) -> tuple[str, ...]:
    bound = "gather" if values["gather"] > values["compute"] else "compute"
    even = () if values["uneven"] > 1 else (say("prefetch.note_even"),)
    return (say(f"prefetch.note_{bound}"), *even)


def _time(name: str, seconds: float, note: str) -> Readout:
    label = say(f"prefetch.{name}")
    return Readout(name=name, label=label, text=time_words(seconds), value=seconds, unit="s", note=note)


_PASS = say("prefetch.group_pass")

EXPLORER = Explorer(
    id="prefetch",
    title=say("prefetch.title"),
    lead=say("prefetch.lead"),
    controls=(
        Slider(
            name="depth",
            label=say("prefetch.depth"),
            default=1,
            group=say("prefetch.group_order"),
            options=scale(DEPTHS, drawing.depth_words),
        ),
        Slider(name="layers", label=say("prefetch.layers"), default=8, group=_PASS, options=scale(LAYERS)),
        *(
            Slider(
                name=name,
                label=say(f"prefetch.{name}"),
                default=50,
                group=_PASS,
                options=scale(TIMES, lambda ms: f"{ms} ms"),
            )
            for name in ("gather", "compute")
        ),
        Slider(
            name="uneven",
            label=say("prefetch.uneven"),
            default=1,
            group=_PASS,
            options=scale(
                UNEVEN,
                lambda times: say(
                    "prefetch.uneven_text" if times > 1 else "prefetch.uneven_even", times=times
                ),
            ),
        ),
    ),
    view=_view,
)
