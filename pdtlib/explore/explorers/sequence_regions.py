"""Explorer ``sequence-regions``: which tensor of a block is cut how, and what each way sends and keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, ControlError, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers import sequence_ways as ways
from pdtlib.explore.explorers.sequence_ways import MODES
from pdtlib.explore.explorers.tensor_split import MODELS
from pdtlib.explore.view import Readout, Swatch, View
from pdtlib.figures import sequence_regions as drawing
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.activations import Setting, layer_bytes
from pdtlib.plan.heads import rank_heads
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.layer_ledger import sent_bytes_of_layer
from pdtlib.plan.spec import Model, Parallel, Train

RANKS = (2, 4, 8, 16, 32)
SEQS = (2048, 4096, 8192, 16384, 32768, 65536, 131072, 1048576)
RECOMPUTES = ("none", "selective", "full")


def _model(values: Values) -> Model:
    return replace(presets.model(values["model"]), seq=values["seq"])


def _why_not(model: Model, mode: str, ranks: int) -> str:
    """Why the model cannot be cut so; empty if it can."""
    if mode == "ulysses":
        few = min(model.heads, model.kv_heads)
        return say("regions.few_heads", heads=few, ranks=ranks) if few % ranks else ""
    if mode in ("tp", "sp"):
        try:
            rank_heads(model.heads, model.kv_heads, tp=ranks, rank=0)
        except ValueError as problem:
            return str(problem)
        if model.ffn % ranks:
            return say("split.uneven", tp=ranks, ffn=f"{model.ffn:,}")
    return ""


def _job_of(values: Values, model: Model, mode: str) -> Job:
    ranks = values["ranks"]
    over_tp = mode in ("tp", "sp")
    return Job(
        model=model,
        train=Train(
            sequence_parallel=mode == "sp", recompute=values["recompute"], flash_attention=values["flash"]
        ),
        parallel=Parallel(tp=ranks) if over_tp else Parallel(cp=ranks, context=mode),
    )


def _kept(values: Values, model: Model, *, tp: int = 1, cp: int = 1, sp: bool = False) -> float:
    """Bytes that all layers keep on one rank for one sequence."""
    setting = Setting(
        seq=model.seq,
        tp=tp,
        cp=cp,
        sequence_parallel=sp,
        recompute=values["recompute"],
        flash_attention=values["flash"],
    )
    return model.layers * layer_bytes(model, setting=setting)


def _kept_by(values: Values, model: Model, mode: str) -> float:
    ranks = values["ranks"]
    if mode in ("tp", "sp"):
        return _kept(values, model, tp=ranks, sp=mode == "sp")
    return _kept(values, model, cp=ranks)


def _view(values: Values) -> View:
    model, mode, ranks, direction = _model(values), values["mode"], values["ranks"], values["direction"]
    refusals = {name: _why_not(model, name, ranks) for name in MODES}
    if refusals[mode]:
        raise ControlError("ranks", refusals[mode])
    rank = min(values["rank"], ranks - 1)
    sent = {
        name: None
        if refusals[name]
        else sent_bytes_of_layer(_job_of(values, model, name), phases=(direction,))
        for name in MODES
    }
    kept = {name: None if refusals[name] else _kept_by(values, model, name) for name in MODES}
    alone = _kept(values, model)
    own_sent, own_kept = sent[mode] or 0.0, kept[mode] or 0.0
    return View(
        figure=drawing.figure(
            ways.held(mode, ranks, rank),
            ways.CALLS[mode, direction],
            rank=rank,
            sent=ways.bars(sent, ways.sent_words),
            kept=ways.bars(kept, ways.kept_words),
            chosen=MODES.index(mode),
        ),
        summary=say(
            f"regions.summary_{mode}",
            ranks=ranks,
            rank=rank,
            sent=ways.sent_words(own_sent),
            kept=ways.kept_words(own_kept),
            direction=say(f"split.{direction}"),
        ),
        readouts=(
            Readout(
                name="sent",
                label=say("regions.sent"),
                text=ways.sent_words(own_sent),
                value=own_sent,
                unit="bytes",
                note=say(f"regions.sent_note_{direction}"),
            ),
            Readout(
                name="kept",
                label=say("regions.kept"),
                text=ways.kept_words(own_kept),
                value=own_kept,
                unit="bytes",
                note=say("regions.kept_note", layers=model.layers),
            ),
            Readout(
                name="saved",
                label=say("regions.saved"),
                text=f"{alone / own_kept:.3g} ×",
                value=alone / own_kept,
                unit="",
                note=say("regions.saved_note", alone=ways.kept_words(alone)),
            ),
            Readout(
                name="weights",
                label=say("regions.weights"),
                text=say("split.share", tp=ranks) if mode in ("tp", "sp") else say("split.all"),
                value=1 / ranks if mode in ("tp", "sp") else 1.0,
                unit="",
                note=say("regions.weights_note_tp" if mode in ("tp", "sp") else "regions.weights_note_cp"),
            ),
        ),
        legend=(
            Swatch(name="own", label=say("split.own", rank=rank), color="c1"),
            *(
                (Swatch(name="whole", label=say("split.whole"), color="c4", pattern="/"),)
                if mode == "tp"
                else ()
            ),
            Swatch(name="message", label=say("regions.message"), color="c2", pattern="line"),
        ),
        table=ways.table(mode, ranks, sent, kept),
        notes=ways.notes(values, model, mode),
        job=_toml(values, mode),
        limits={"rank": ranks},
    )


def _toml(values: Values, mode: str) -> str:
    ranks = values["ranks"]
    over_tp = mode in ("tp", "sp")
    return to_toml(
        from_dict(
            {
                "model": {
                    "preset": values["model"],
                    "seq": values["seq"],
                    **({} if over_tp else {"dropout": 0.0}),
                },
                "train": {
                    "sequence_parallel": mode == "sp",
                    "recompute": values["recompute"],
                    "flash_attention": values["flash"],
                },
                "parallel": {"tp": ranks} if over_tp else {"cp": ranks, "context": mode},
                "hardware": {"gpu": "A100-SXM4-80", "gpus_per_node": max(8, ranks)},
            }
        )
    )


def _adopt(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = {
        "seq": sizes.nearest(SEQS, job.model.seq),
        "flash": job.train.flash_attention,
        "recompute": job.train.recompute,
    }
    if job.model.name in MODELS:
        state["model"] = job.model.name
    mode, degree = "sp" if job.train.sequence_parallel else "tp", job.parallel.tp
    if job.parallel.cp > 1:
        mode, degree = job.parallel.context, job.parallel.cp
    model = presets.model(state.get("model", _DEFAULT_MODEL))
    fitting = tuple(ranks for ranks in RANKS if not _why_not(model, mode, ranks))
    return {**state, "mode": mode, "ranks": sizes.nearest(fitting, degree)}


_DEFAULT_MODEL = "llama3-70b"
_CUT, _LAYER = say("regions.group_cut"), say("split.group_layer")

EXPLORER = Explorer(
    id="sequence-regions",
    title=say("regions.title"),
    lead=say("regions.lead"),
    controls=(
        Choice(
            name="mode",
            label=say("regions.mode"),
            default="sp",
            group=_CUT,
            options=tuple((mode, say(f"regions.mode_{mode}")) for mode in MODES),
        ),
        sizes.direction_control(group=_CUT),
        Slider(name="ranks", label=say("regions.ranks"), default=8, group=_CUT, options=scale(RANKS)),
        Slider(name="rank", label=say("split.rank"), default=0, group=_CUT, options=scale(range(RANKS[-1]))),
        sizes.preset_control(_DEFAULT_MODEL, MODELS, group=_LAYER),
        sizes.seq_control(131072, SEQS, group=_LAYER),
        Choice(
            name="recompute",
            label=say("memory.recompute"),
            default="none",
            group=_LAYER,
            options=tuple((name, say(f"memory.recompute_{name}")) for name in RECOMPUTES),
        ),
        Toggle(name="flash", label=say("memory.flash"), default=True, group=_LAYER),
    ),
    view=_view,
    adopt_job=_adopt,
)
