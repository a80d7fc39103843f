"""The legend of a schedule over time: its operations, and the stages whose memory is drawn."""

from __future__ import annotations

from pdtlib.explore.view import Swatch
from pdtlib.figures import schedule as drawing
from pdtlib.figures.words import say
from pdtlib.plan.schedule import Timeline


def legend(timeline: Timeline) -> tuple[Swatch, ...]:
    """An entry for each operation of the table and for each curve below it."""
    operations = (
        Swatch(name=part.name, label=text, color=part.color, pattern=part.pattern)
        for part, text in drawing.legend(timeline)
    )
    curves = (
        Swatch(
            name=f"held{stage}",
            label=say("player.held", stage=stage),
            color=drawing.curve_color(stage),
            pattern="stroke" if stage < 6 else "line",
        )
        for stage in drawing.curve_stages(timeline.schedule.stages)
    )
    return (*operations, *curves)
