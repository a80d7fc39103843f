"""Explorer ``async-timeline``: workers that update together, alone or within a bound, one of them slow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdtlib.explore.controls import Choice, Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import workers as drawing
from pdtlib.figures.words import say
from pdtlib.plan.reliability import Update, simulate_workers, stable_step
from pdtlib.plan.reliability.workers import MODES
from pdtlib.plan.units import percent_text

WORKERS = (2, 4, 8, 16)
SLOWER = (1.0, 1.25, 2.0, 4.0, 8.0)
BOUNDS = (0, 1, 2, 3, 5, 10)
HORIZON = 160.0  # twice a multiple of every time above, so that its second half holds whole rounds
DRAWN = 16.0


@dataclass(frozen=True)
class Steady:
    """What goes on once the start is forgotten: gradients applied in the second half of the horizon."""

    workers: int
    updates: tuple[Update, ...]

    @property
    def span_s(self) -> float:
        return HORIZON / 2

    @property
    def rate(self) -> float:
        return len(self.updates) / self.span_s

    def of(self, worker: int) -> list[Update]:
        return [update for update in self.updates if update.worker == worker]

    def busy(self, *workers: int) -> float:
        """Share of these workers' time that went into gradients."""
        spent = sum(update.done_s - update.start_s for worker in workers for update in self.of(worker))
        return spent / (len(workers) * self.span_s)


def steady(values: Values) -> Steady:
    """The second half of a long run."""
    run = simulate_workers(_times(values), until_s=HORIZON, mode=values["mode"], bound=values["bound"])
    late = tuple(update for update in run.updates if update.applied_s > HORIZON / 2)
    return Steady(values["workers"], late)


def _times(values: Values) -> list[float]:
    return [1.0] * (values["workers"] - 1) + [values["slower"]]


def mean_staleness(updates: list[Update]) -> float:
    return sum(update.staleness for update in updates) / max(1, len(updates))


def _view(values: Values) -> View:
    workers = values["workers"]
    late = steady(values)
    everyone = list(late.updates)
    staleness = mean_staleness(everyone)
    stable = stable_step(math.ceil(staleness - 1e-9))
    busy = late.busy(*range(workers))
    best = sum(1 / time for time in _times(values))
    shown = simulate_workers(_times(values), until_s=DRAWN, mode=values["mode"], bound=values["bound"])
    mode = say(f"workers.mode_{values['mode']}")
    slower = (
        say("workers.slower_text", factor=f"{values['slower']:g}")
        if values["slower"] > 1
        else say("workers.equal_text")
    )
    return View(
        figure=drawing.figure(shown, workers=workers, until_s=DRAWN),
        summary=say(
            "workers.summary",
            mode=mode.capitalize(),
            workers=workers,
            slower=slower,
            rate=f"{late.rate:.4g}",
            busy=percent_text(busy, digits=0),
            staleness=f"{staleness:.2g}",
        ),
        readouts=(
            Readout(
                name="rate",
                label=say("workers.rate"),
                text=f"{late.rate:.4g}",
                value=late.rate,
                note=say(
                    "workers.rate_note", share=percent_text(late.rate / best, digits=0), best=f"{best:.4g}"
                ),
            ),
            Readout(
                name="busy",
                label=say("workers.busy"),
                text=percent_text(busy, digits=0),
                value=busy,
                unit="share",
                note=say("workers.busy_note"),
            ),
            Readout(
                name="staleness",
                label=say("workers.staleness"),
                text=f"{staleness:.2f}",
                value=staleness,
                note=say(
                    "workers.staleness_note", most=max((update.staleness for update in everyone), default=0)
                ),
            ),
            Readout(
                name="stable",
                label=say("workers.stable"),
                text=f"{stable:.3f}",
                value=stable,
                note=say("workers.stable_note"),
            ),
        ),
        legend=tuple(
            Swatch(name=part.name, label=say(f"workers.{part.name}"), color=part.color, pattern=part.pattern)
            for part in drawing.PARTS
        ),
        table=Table(
            caption=say("workers.table", horizon=f"{HORIZON:g}"),
            columns=tuple(
                say(f"workers.column_{name}") for name in ("worker", "gradients", "busy", "staleness")
            ),
            rows=tuple(
                (
                    str(worker),
                    str(len(late.of(worker))),
                    percent_text(late.busy(worker), digits=0),
                    f"{mean_staleness(late.of(worker)):.2f}",
                )
                for worker in range(workers)
            ),
        ),
        notes=_notes(values),
    )


def _notes(values: Values) -> tuple[str, ...]:
    notes = []
    if values["mode"] == "stale-synchronous":
        notes.append(say("workers.note_bound", bound=values["bound"]))
        if values["slower"] > 1:
            notes.append(say("workers.note_persistent"))
    else:
        notes.append(say(f"workers.note_{values['mode']}"))
    notes.append(say("workers.note_delay"))
    notes.append(say("workers.note_window", horizon=f"{HORIZON:g}"))
    return tuple(notes)


_RULE, _WORKERS = say("workers.group_rule"), say("workers.group_workers")

EXPLORER = Explorer(
    id="async-timeline",
    title=say("workers.title"),
    lead=say("workers.lead"),
    controls=(
        Choice(
            name="mode",
            label=say("workers.mode"),
            default="synchronous",
            group=_RULE,
            options=tuple((mode, say(f"workers.mode_{mode}")) for mode in MODES),
        ),
        Slider(
            name="bound",
            label=say("workers.bound"),
            default=3,
            group=_RULE,
            options=scale(BOUNDS),
            when=("mode", ("stale-synchronous",)),
        ),
        Slider(name="workers", label=say("workers.count"), default=8, group=_WORKERS, options=scale(WORKERS)),
        Slider(
            name="slower",
            label=say("workers.slower"),
            default=4.0,
            group=_WORKERS,
            options=scale(
                SLOWER, lambda factor: f"× {factor:g}" if factor > 1 else say("workers.slower_not")
            ),
        ),
    ),
    view=_view,
    together=(("mode", "slower"),),
)
