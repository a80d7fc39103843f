"""Explorer ``mfu``: the utilisation of one run by every way to count that papers use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, Number, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import efficiency as drawing
from pdtlib.figures.amounts import count_words
from pdtlib.figures.words import say
from pdtlib.plan import efficiency, flops, presets
from pdtlib.plan.flops import ATTENTION_CONVENTIONS, PEAKS, Conventions
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.params import count
from pdtlib.plan.units import flops_text, percent_text

GPUS = (1, 8, 64, 128, 256, 280, 512, 1024, 2048, 3072, 4096, 8192, 16384)
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class _Way:
    """A way to count: FLOPs a token over a peak."""

    name: str
    flops: float
    peak: float
    kind: str = "mfu"


@dataclass(frozen=True)
class _Run:
    values: Values

    @property
    def model(self) -> Any:
        return presets.model(self.values["model"])

    def share(self, way: _Way) -> float:
        """The utilisation of this run counted so."""
        rate = self.values["rate"]
        return flops.mfu(way.flops * rate, seconds=1.0, num_gpus=self.values["gpus"], peak_flops=way.peak)

    def peak(self, peak: str) -> float:
        return flops.peak_flops(self.values["gpu"], peak=peak)

    def ways(self) -> list[_Way]:
        """The reader's own, the executed one beside it, then those of the papers."""
        values, model = self.values, self.model
        own = Conventions(
            attention=values["attention"], logits=values["logits"], embeddings=values["embeddings"]
        )
        chosen, dense = self.peak(values["peak"]), self.peak("dense")
        executed = flops.hardware_flops_per_token(model, recompute=values["recompute"], conventions=own)
        usual = flops.model_flops_per_token(model)
        counted = count(model)
        found = [
            _Way(
                say("mfu.way_chosen"), flops.model_flops_per_token(model, conventions=own), chosen, "chosen"
            ),
            _Way(say("mfu.way_hardware"), executed, chosen, "hardware"),
            _Way(say("mfu.way_usual"), usual, dense),
            _Way(
                say("mfu.way_causal"),
                flops.model_flops_per_token(model, conventions=Conventions(attention="causal")),
                dense,
            ),
            _Way(say("mfu.way_6nd"), flops.training_flops(counted.active, num_tokens=1), dense),
        ]
        if counted.active != counted.total:
            everything = flops.training_flops(counted.total, num_tokens=1)
            found.append(_Way(say("mfu.way_inactive"), everything, dense))
        return [*found, _Way(say("mfu.way_sparse"), usual, self.peak("sparse"))]


def _view(values: Values) -> View:
    run = _Run(values)
    ways = run.ways()
    best = efficiency.best_share(values["gpu"])
    shares = [run.share(way) for way in ways]
    models = [run.share(way) for way in ways if way.kind != "hardware"]
    high, low = max(models), min(models)
    texts = {
        "rate": count_words(values["rate"]),
        "gpus": f"{values['gpus']:,}",
        "gpu": values["gpu"],
        "mfu": percent_text(shares[0]),
        "hfu": percent_text(shares[1]),
        "conventions": _conventions(values),
        "low": percent_text(low),
        "high": percent_text(high),
    }
    swatches = [
        Swatch(name=part.name, label=say(f"mfu.part_{part.name}"), color=part.color, pattern=part.pattern)
        for part in drawing.WAYS.values()
    ]
    if best:
        swatches.append(Swatch(name="best", label=say("mfu.best"), color="bad", pattern="line"))
    return View(
        figure=drawing.utilisations(
            [drawing.Way(way.name, share, way.kind) for way, share in zip(ways, shares, strict=True)],
            best_share=best if values["peak"] == "dense" else None,
        ),
        summary=say("mfu.summary", **texts),
        readouts=_readouts(run, ways, high, low),
        legend=tuple(swatches),
        table=Table(
            caption=say("mfu.table"),
            columns=tuple(say(f"mfu.column_{name}") for name in ("way", "flops", "peak", "share")),
            rows=tuple(
                (way.name, flops_text(way.flops), f"{way.peak / 1e12:,.0f}", percent_text(share))
                for way, share in zip(ways, shares, strict=True)
            ),
        ),
        notes=_notes(run, shares),
        job=to_toml(
            from_dict(
                {
                    "model": {"preset": values["model"]},
                    "train": {"recompute": values["recompute"]},
                    "hardware": {"gpu": values["gpu"], "n_gpus": values["gpus"]},
                }
            )
        ),
    )


def _conventions(values: Values) -> str:
    counted = [say(f"mfu.words_attention_{values['attention']}")]
    counted += [say(f"mfu.words_{name}") for name in ("logits", "embeddings") if values[name]]
    return ", ".join([*counted, say("mfu.words_peak", peak=say(f"mfu.peak_{values['peak']}"))])


def _readouts(run: _Run, ways: list[_Way], high: float, low: float) -> tuple[Readout, ...]:
    own, executed = ways[0], ways[1]
    active = count(run.model).active
    six = _Way("", flops.training_flops(active, num_tokens=1), run.peak("dense"))
    rate = own.flops * run.values["rate"] / run.values["gpus"]

    def share(name: str, way: _Way, note: str) -> Readout:
        value = run.share(way)
        return Readout(
            name=name,
            label=say(f"mfu.{name}"),
            text=percent_text(value),
            value=value,
            unit="share",
            note=note,
            tone="bad" if value > 1 else "",
        )

    return (
        share("chosen", own, say("mfu.chosen_note", flops=flops_text(own.flops))),
        share("hardware", executed, say("mfu.hardware_note", flops=flops_text(executed.flops))),
        share("six", six, say("mfu.six_note", params=count_words(active))),
        Readout(
            name="per_gpu",
            label=say("mfu.per_gpu"),
            text=flops_text(rate),
            value=rate,
            unit="flops",
            note=say("mfu.per_gpu_note", peak=flops_text(own.peak)),
        ),
        Readout(
            name="spread",
            label=say("mfu.spread"),
            text=f"{high / low:.2f}",
            value=high / low,
            note=say("mfu.spread_note", high=percent_text(high), low=percent_text(low)),
        ),
    )


def _notes(run: _Run, shares: list[float]) -> tuple[str, ...]:
    notes = flops.utilisation_warnings(shares[0])
    counted = count(run.model)
    if counted.active != counted.total:
        notes.append(
            say("mfu.note_moe", active=count_words(counted.active), total=count_words(counted.total))
        )
    if run.values["peak"] == "sparse":
        notes.append(say("mfu.note_sparse"))
    return tuple(notes)


def _adopt(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = {
        "gpus": sizes.nearest(GPUS, job.hardware.n_gpus),
        "recompute": job.train.recompute,
    }
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    if job.model.name in sizes.NAMED:
        state["model"] = job.model.name
    return state


_RUN, _COUNTING = say("mfu.group_run"), say("mfu.group_counting")

EXPLORER = Explorer(
    id="mfu",
    title=say("mfu.title"),
    lead=say("mfu.lead"),
    controls=(
        sizes.preset_control("mt-nlg-530b", sizes.NAMED, group=_RUN, label=say("mfu.model")),
        Number(
            name="rate",
            label=say("mfu.rate"),
            default=15158,
            minimum=1.0,
            maximum=1e12,
            integer=False,
            group=_RUN,
            help=say("size.params_help"),
            suggestions=("10K", "100K", "1M", "3M"),
        ),
        Slider(
            name="gpus",
            label=say("mfu.gpus"),
            default=280,
            group=_RUN,
            options=scale(GPUS, lambda gpus: f"{gpus:,}"),
            job_field="hardware.n_gpus",
        ),
        sizes.gpu_control(group=_RUN),
        Choice(
            name="recompute",
            label=say("mfu.recompute"),
            default="selective",
            group=_RUN,
            options=tuple((name, say(f"mfu.recompute_{name}")) for name in RECOMPUTE),
            job_field="train.recompute",
        ),
        Choice(
            name="attention",
            label=say("mfu.attention"),
            default="full",
            group=_COUNTING,
            options=tuple((name, say(f"mfu.attention_{name}")) for name in ATTENTION_CONVENTIONS),
        ),
        Toggle(name="logits", label=say("mfu.logits"), default=True, group=_COUNTING),
        Toggle(name="embeddings", label=say("mfu.embeddings"), group=_COUNTING),
        Choice(
            name="peak",
            label=say("mfu.peak"),
            default="dense",
            group=_COUNTING,
            options=tuple((name, say(f"mfu.peak_{name}")) for name in PEAKS),
        ),
    ),
    view=_view,
    adopt_job=_adopt,
)
