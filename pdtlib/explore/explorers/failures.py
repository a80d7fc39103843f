"""Explorer ``failures``: how often a cluster fails, how often to save, and a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.explore.controls import Choice, Player, Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import failures as drawing
from pdtlib.figures.amounts import time_words
from pdtlib.figures.words import say
from pdtlib.plan.reliability import (
    FLEETS,
    Goodput,
    Run,
    best_interval,
    daly_interval,
    goodput,
    simulate_run,
    young_interval,
)
from pdtlib.plan.units import HOUR_S, percent_text

GPUS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SAVES_S = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
RESTARTS_S = (0.0, 60.0, 300.0, 600.0, 1800.0)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
CURVE = tuple(2 ** (power / 4) for power in range(-12, 13))
SEEDS = tuple(range(1, 13))
FAILURES_PER_RUN = 10  # the work of a run, in mean times between failures
FIRST_ORDER = 0.05  # of the mean time between failures: longer pauses are no longer short


@dataclass(frozen=True)
class _Case:
    mtbf_s: float
    save_s: float
    restart_s: float
    factor: float
    seed: int

    @property
    def young_s(self) -> float:
        return young_interval(mtbf_s=self.mtbf_s, save_s=self.save_s)

    def at(self, factor: float) -> Goodput:
        """What failures cost with this many times Young's interval."""
        return goodput(
            mtbf_s=self.mtbf_s,
            save_s=self.save_s,
            restart_s=self.restart_s,
            interval_s=factor * self.young_s,
        )

    def run(self) -> Run:
        return simulate_run(
            FAILURES_PER_RUN * self.mtbf_s,
            mtbf_s=self.mtbf_s,
            save_s=self.save_s,
            restart_s=self.restart_s,
            interval_s=self.factor * self.young_s,
            seed=self.seed,
        )


def _view(values: Values) -> View:
    fleet = FLEETS[values["fleet"]]
    case = _Case(
        mtbf_s=fleet.mtbf_s(values["gpus"]),
        save_s=values["save"],
        restart_s=values["restart"],
        factor=values["interval"],
        seed=values["seed"],
    )
    chosen, run = case.at(case.factor), case.run()
    best_s = best_interval(mtbf_s=case.mtbf_s, save_s=case.save_s)
    curve = [(plan.interval_s, 1 / plan.goodput - 1) for plan in map(case.at, CURVE)]
    return View(
        figure=drawing.figure(run, curve=curve, chosen_s=chosen.interval_s, best_s=best_s),
        summary=say(
            "failures.summary",
            gpus=f"{values['gpus']:,}",
            mtbf=_hours(case.mtbf_s),
            interval=time_words(chosen.interval_s),
            useful=percent_text(chosen.goodput),
            failures=run.failures,
            measured=percent_text(run.goodput),
        ),
        readouts=_readouts(case, chosen, run, fleet.gpu_hours_per_failure),
        legend=(
            Swatch(name="done", label=say("failures.legend_done"), color="c1", pattern="stroke"),
            Swatch(name="ideal", label=say("failures.legend_ideal"), color="muted", pattern="dots"),
            Swatch(name="failure", label=say("failures.legend_failure"), color="bad"),
            Swatch(name="curve", label=say("failures.legend_curve"), color="c2", pattern="stroke"),
            Swatch(name="best", label=say("failures.legend_best"), color="c3", pattern="line"),
        ),
        table=Table(
            caption=say("failures.table"),
            columns=tuple(
                say(f"failures.column_{name}") for name in ("interval", "saving", "losing", "extra", "useful")
            ),
            rows=tuple(_row(case.at(factor)) for factor in FACTORS),
        ),
        notes=(
            *((say("failures.note_first_order"),) if _long(case) else ()),
            say("failures.note_ten"),
            say("failures.note_fleet", title=fleet.title, source=fleet.source),
        ),
    )


def _long(case: _Case) -> bool:
    return max(case.save_s, case.restart_s) > FIRST_ORDER * case.mtbf_s


def _saving(plan: Goodput) -> float:
    return plan.save_s / plan.interval_s


def _row(plan: Goodput) -> tuple[str, ...]:
    return (
        time_words(plan.interval_s),
        percent_text(_saving(plan)),
        percent_text(plan.overhead_fraction - _saving(plan)),
        percent_text(plan.overhead_fraction),
        percent_text(plan.goodput),
    )


def _readouts(case: _Case, chosen: Goodput, run: Run, gpu_hours: float) -> tuple[Readout, ...]:
    mean = {"mtbf_s": case.mtbf_s, "save_s": case.save_s}
    return (
        Readout(
            name="mtbf",
            label=say("failures.mtbf"),
            text=_hours(case.mtbf_s),
            value=case.mtbf_s,
            unit="s",
            note=say("failures.mtbf_note", gpu_hours=f"{gpu_hours:,.0f}"),
        ),
        Readout(
            name="interval",
            label=say("failures.chosen"),
            text=time_words(chosen.interval_s),
            value=chosen.interval_s,
            unit="s",
            note=say(
                "failures.chosen_note",
                daly=time_words(daly_interval(**mean)),
                best=time_words(best_interval(**mean)),
            ),
        ),
        Readout(
            name="overhead",
            label=say("failures.overhead"),
            text=percent_text(chosen.overhead_fraction),
            value=chosen.overhead_fraction,
            unit="share",
            note=say(
                "failures.overhead_note",
                saving=percent_text(_saving(chosen)),
                losing=percent_text(chosen.overhead_fraction - _saving(chosen)),
            ),
        ),
        Readout(
            name="expected",
            label=say("failures.expected"),
            text=percent_text(chosen.goodput),
            value=chosen.goodput,
            unit="share",
            note=say("failures.expected_note"),
        ),
        Readout(
            name="measured",
            label=say("failures.measured"),
            text=percent_text(run.goodput),
            value=run.goodput,
            unit="share",
            note=say("failures.measured_note", failures=run.failures, wall=time_words(run.wall_s)),
        ),
        Readout(
            name="lost",
            label=say("failures.lost"),
            text=percent_text(run.lost_s / run.wall_s),
            value=run.lost_s / run.wall_s,
            unit="share",
            note=say(
                "failures.lost_note",
                saving=percent_text(run.saving_s / run.wall_s),
                restarting=percent_text(run.restarting_s / run.wall_s),
            ),
        ),
    )


def _hours(seconds: float) -> str:
    return say("failures.hours", hours=f"{seconds / HOUR_S:.3g}")


def _interval_text(factor: float) -> str:
    if factor == 1:
        return say("failures.interval_best")
    return say("failures.interval_times", factor=f"{factor:g}")


_CLUSTER, _SAVING, _RUN = (say(f"failures.group_{name}") for name in ("cluster", "saving", "run"))

EXPLORER = Explorer(
    id="failures",
    title=say("failures.title"),
    lead=say("failures.lead"),
    controls=(
        Choice(
            name="fleet",
            label=say("failures.fleet"),
            default="llama3",
            group=_CLUSTER,
            options=tuple((name, fleet.title) for name, fleet in FLEETS.items()),
        ),
        Slider(
            name="gpus",
            label=say("failures.gpus"),
            default=2048,
            group=_CLUSTER,
            options=scale(GPUS, lambda gpus: f"{gpus:,}"),
        ),
        Slider(
            name="save",
            label=say("failures.save"),
            default=30.0,
            group=_SAVING,
            options=scale(SAVES_S, time_words),
        ),
        Slider(
            name="restart",
            label=say("failures.restart"),
            default=0.0,
            group=_SAVING,
            options=scale(
                RESTARTS_S, lambda seconds: time_words(seconds) if seconds else say("failures.restart_none")
            ),
        ),
        Slider(
            name="interval",
            label=say("failures.interval"),
            default=1.0,
            group=_SAVING,
            options=scale(FACTORS, _interval_text),
        ),
        Player(name="seed", label=say("failures.seed"), default=1, group=_RUN, options=scale(SEEDS)),
    ),
    view=_view,
)
