"""Explorer ``thresholds``: what shares of a step leave for MFU, and whether three thresholds fit together."""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.explore import sizes
from pdtlib.explore.controls import Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import efficiency as drawing
from pdtlib.figures.words import say
from pdtlib.plan.efficiency import (
    ARTICLE_BANDS,
    best_share,
    kernels_needed,
    left_to_compute,
    mfu_bound,
    micro_batches_needed,
)
from pdtlib.plan.units import percent_text

SHARES = tuple(percent / 100 for percent in (0, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50))
MFUS = tuple(percent / 100 for percent in (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70))
BEST = 0.0  # stands for the best matrix product measured on the GPU
KERNELS = (BEST, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
STAGES = (1, 2, 4, 8, 16, 32)
CHUNKS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class _Case:
    values: Values

    @property
    def best(self) -> float | None:
        return best_share(self.values["gpu"])

    @property
    def kernels(self) -> float:
        """The share of peak that kernels reach; the printed peak where no measured one is known."""
        return self.values["kernels"] or self.best or 1.0

    @property
    def bound(self) -> float:
        return self.bound_of(self.values["communication"], self.values["bubble"])

    def bound_of(self, communication: float, bubble: float) -> float:
        return mfu_bound(communication=communication, bubble=bubble, kernels=self.kernels)

    def step(self, name: str, communication: float, bubble: float) -> drawing.Step:
        mfu = self.bound_of(communication, bubble)
        slow = left_to_compute(communication=communication, bubble=bubble) - mfu
        parts = {"mfu": mfu, "slow": slow, "bubble": bubble, "communication": communication}
        return drawing.Step(name, parts)


def _view(values: Values) -> View:
    case = _Case(values)
    rows = [case.step(say("bands.row_yours"), values["communication"], values["bubble"])]
    rows += [
        case.step(say(f"bands.row_{name}"), band.communication, band.bubble)
        for name, band in ARTICLE_BANDS.items()
    ]
    fits = case.bound >= values["mfu"] - 1e-12
    swatches = [
        Swatch(
            name=name,
            label=say(f"bands.part_{name}"),
            color=part.color,
            pattern=part.pattern,
            text=percent_text(rows[0].parts[name]),
            value=rows[0].parts[name],
            unit="share",
        )
        for name, part in drawing.PARTS.items()
    ]
    notes = [say("bands.note_bound")]
    if case.best is None:
        notes.insert(0, say("bands.note_unknown", gpu=values["gpu"]))
    return View(
        figure=drawing.steps(rows, wanted_mfu=values["mfu"]),
        summary=say(
            "bands.summary_fit" if fits else "bands.summary_unfit",
            communication=percent_text(values["communication"], digits=0),
            bubble=percent_text(values["bubble"], digits=0),
            bound=percent_text(case.bound),
            gpu=values["gpu"],
            mfu=percent_text(values["mfu"], digits=0),
        ),
        readouts=_readouts(case, fits=fits),
        legend=(*swatches, Swatch(name="wanted", label=say("bands.line"), color="bad", pattern="line")),
        table=Table(
            caption=say("bands.table", gpu=values["gpu"]),
            columns=tuple(
                say(f"bands.column_{name}") for name in ("band", "waiting", "bound", "mfu", "kernels")
            ),
            rows=tuple(
                (
                    say(f"bands.row_{name}"),
                    percent_text(band.communication + band.bubble, digits=0),
                    percent_text(case.bound_of(band.communication, band.bubble)),
                    percent_text(band.mfu, digits=0),
                    percent_text(
                        kernels_needed(band.mfu, communication=band.communication, bubble=band.bubble)
                    ),
                )
                for name, band in ARTICLE_BANDS.items()
            ),
        ),
        notes=tuple(notes),
    )


def _readouts(case: _Case, *, fits: bool) -> tuple[Readout, ...]:
    values = case.values
    shares = {name: values[name] for name in ("communication", "bubble")}
    left = left_to_compute(**shares)
    bound = Readout(
        name="bound",
        label=say("bands.bound"),
        text=percent_text(case.bound),
        value=case.bound,
        unit="share",
        note=say("bands.bound_note", left=percent_text(left), kernels=percent_text(case.kernels)),
        tone="good" if fits else "bad",
    )
    return (bound, _kernels(case, left), _micro_batches(case))


def _kernels(case: _Case, left: float) -> Readout:
    mfu = percent_text(case.values["mfu"], digits=0)
    if left < 1e-12:
        return Readout(name="needed", label=say("bands.needed"), text=say("bands.never"), tone="bad")
    needed = case.values["mfu"] / left
    over = needed > (case.best or 1.0)
    if case.best is None:
        note = say("bands.needed_unknown", mfu=mfu)
    else:
        key = "bands.needed_impossible" if over else "bands.needed_possible"
        note = say(key, mfu=mfu, best=percent_text(case.best))
    return Readout(
        name="needed",
        label=say("bands.needed"),
        text=percent_text(needed),
        value=needed,
        unit="share",
        note=note,
        tone="bad" if over else "",
    )


def _micro_batches(case: _Case) -> Readout:
    bubble, stages = case.values["bubble"], case.values["stages"]
    label = say("bands.micro_batches")
    if stages == 1:
        return Readout(name="micro_batches", label=label, text=say("bands.none"))
    if bubble == 0:
        return Readout(name="micro_batches", label=label, text=say("bands.never_bubble"))
    fewest = micro_batches_needed(bubble, stages=stages, chunks=case.values["chunks"])
    note = say("bands.micro_batches_note", bubble=percent_text(bubble, digits=0))
    return Readout(
        name="micro_batches", label=label, text=f"{fewest:,}", value=fewest, unit="count", note=note
    )


def _percent(share: float) -> str:
    return percent_text(share, digits=0)


_STEP, _WANTED, _PIPELINE = (say(f"bands.group_{name}") for name in ("step", "wanted", "pipeline"))

EXPLORER = Explorer(
    id="thresholds",
    title=say("bands.title"),
    lead=say("bands.lead"),
    controls=(
        Slider(
            name="communication",
            label=say("bands.communication"),
            default=0.35,
            group=_STEP,
            options=scale(SHARES, _percent),
        ),
        Slider(
            name="bubble",
            label=say("bands.bubble"),
            default=0.2,
            group=_STEP,
            options=scale(SHARES, _percent),
        ),
        Slider(name="mfu", label=say("bands.mfu"), default=0.4, group=_WANTED, options=scale(MFUS, _percent)),
        sizes.gpu_control(group=_WANTED),
        Slider(
            name="kernels",
            label=say("bands.kernels"),
            default=BEST,
            group=_WANTED,
            options=scale(
                KERNELS,
                lambda share: (
                    say("bands.kernels_share", share=_percent(share)) if share else say("bands.kernels_best")
                ),
            ),
        ),
        Slider(name="stages", label=say("bands.stages"), default=8, group=_PIPELINE, options=scale(STAGES)),
        Slider(name="chunks", label=say("bands.chunks"), default=1, group=_PIPELINE, options=scale(CHUNKS)),
    ),
    view=_view,
)
