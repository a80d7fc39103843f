"""Explorer ``memory-stack``: what one GPU holds for a model, a micro-batch and a way to split them."""

from __future__ import annotations

from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers.memory_terms import ARTICLE, Memory, job_of, memory_of
from pdtlib.explore.precision import accounting_control, accounting_of
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import memory as drawing
from pdtlib.figures.amounts import bytes_words, count_words, gb_words
from pdtlib.figures.words import say
from pdtlib.plan import presets, states
from pdtlib.plan.job import Job, to_toml
from pdtlib.plan.params import count

SEQUENCES = tuple(512 * 2**i for i in range(9))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
TP = (1, 2, 4, 8, 16)
DP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def _view(values: Values) -> View:
    job = job_of(values)
    memory = memory_of(values, job)
    gpu = presets.GPUS[values["gpu"]]
    fits = memory.total <= gpu.memory_bytes
    shown = [(part, memory.terms[part.name]) for part in drawing.PARTS if memory.terms[part.name]]
    room = gb_words(gpu.memory_bytes)
    words = {
        "gpus": job.parallel.world_size,
        "gpu": gpu.name,
        "capacity": room,
        "total": gb_words(memory.total),
        "states": gb_words(memory.states_bytes),
        "rest": gb_words(memory.total - memory.states_bytes),
        "room": gb_words(gpu.memory_bytes - memory.total),
        "ratio": f"{memory.total / gpu.memory_bytes:.3g}",
    }
    one = "one" if job.parallel.world_size == 1 else "summary"
    return View(
        figure=drawing.figure(shown, capacity_bytes=gpu.memory_bytes),
        summary=say(f"memory.{one}_{'fits' if fits else 'over'}", **words),
        readouts=_readouts(values, job, memory, fits=fits, room=room),
        legend=(
            *(
                Swatch(
                    name=part.name,
                    label=say(f"memory.{part.name}"),
                    color=part.color,
                    pattern=part.pattern,
                    text=gb_words(value),
                    value=value,
                    unit="bytes",
                )
                for part, value in shown
            ),
            Swatch(
                name="capacity",
                label=say("state.capacity", gpu=gpu.name),
                color="bad",
                pattern="line",
                text=room,
                value=gpu.memory_bytes,
                unit="bytes",
            ),
        ),
        table=Table(
            caption=say("memory.table"),
            columns=tuple(say(f"memory.column_{name}") for name in ("term", "gb", "gib", "share")),
            rows=tuple(
                _row(say(f"memory.{name}"), value, memory.total)
                for name, value in (*((part.name, value) for part, value in shown), ("total", memory.total))
            ),
        ),
        notes=_notes(values, job),
        job=to_toml(job),
    )


def _row(name: str, value: float, whole: float) -> tuple[str, ...]:
    return (name, gb_words(value), bytes_words(value, binary=True), f"{value / whole:.1%}")


def _readouts(values: Values, job: Job, memory: Memory, *, fits: bool, room: str) -> tuple[Readout, ...]:
    accounting = states.ACCOUNTINGS[values["accounting"]]
    rest = memory.terms["loss"] + memory.terms["buffers"] + memory.terms["recomputed"]
    return (
        Readout(
            name="states",
            label=say("memory.readout_states"),
            text=gb_words(memory.states_bytes),
            value=memory.states_bytes,
            unit="bytes",
            note=say(
                "memory.readout_states_note",
                each=accounting.total,
                count=count_words(memory.rank_params),
                stage=job.train.zero_stage,
            ),
        ),
        Readout(
            name="activations",
            label=say("memory.readout_activations"),
            text=bytes_words(memory.layers_bytes, binary=True),
            value=memory.layers_bytes,
            unit="bytes",
            note=say(
                "memory.readout_activations_note",
                decimal=gb_words(memory.layers_bytes),
                per_layer=bytes_words(memory.layers_bytes / job.model.layers, binary=True),
                layers=job.model.layers,
            ),
        ),
        Readout(name="rest", label=say("memory.readout_rest"), text=gb_words(rest), value=rest, unit="bytes"),
        Readout(
            name="total",
            label=say("memory.readout_total"),
            text=gb_words(memory.total),
            value=memory.total,
            unit="bytes",
            note=say(f"memory.readout_total_{'fits' if fits else 'over'}", capacity=room),
            tone="good" if fits else "bad",
        ),
        Readout(
            name="gpus",
            label=say("memory.readout_gpus"),
            text=f"{job.parallel.world_size:,}",
            value=job.parallel.world_size,
            unit="count",
            note=say("memory.readout_gpus_note", tp=job.parallel.tp, dp=job.parallel.dp),
        ),
    )


def _notes(values: Values, job: Job) -> tuple[str, ...]:
    notes = [say("memory.note_usable")]
    if values["model"] == ARTICLE:
        notes.insert(0, say("memory.note_article", count=count_words(count(job.model).total)))
    elif values["model"] in sizes.NAMED and job.model.vocab != presets.model(values["model"]).vocab:
        words = {
            "before": presets.model(values["model"]).vocab,
            "after": job.model.vocab,
            "tp": job.parallel.tp,
        }
        notes.insert(0, say("memory.note_padded", **words))
    return tuple(notes)


def _adopt(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = {
        "seq": sizes.nearest(SEQUENCES, job.model.seq),
        "micro_batch": sizes.nearest(BATCHES, job.train.micro_batch),
        "tp": sizes.nearest(TP, job.parallel.tp),
        "dp": sizes.nearest(DP, job.parallel.dp),
        "sp": job.train.sequence_parallel,
        "zero": job.train.zero_stage,
        "recompute": job.train.recompute,
        "flash": job.train.flash_attention,
        "accounting": accounting_of(job),
    }
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    if job.model.name in sizes.NAMED:
        return {**state, "model": job.model.name}
    if job.model.name == "article-70b":
        return {**state, "model": ARTICLE}
    return {**state, **sizes.adopted_shape(job)}


_MODEL = say("memory.group_model")
_BATCH = say("memory.group_batch")
_SPLIT = say("memory.group_split")

EXPLORER = Explorer(
    id="memory-stack",
    title=say("memory.title"),
    lead=say("memory.lead"),
    controls=(
        Choice(
            name="model",
            label=say("size.label"),
            default=ARTICLE,
            group=_MODEL,
            options=(
                (ARTICLE, say("memory.article")),
                *((name, sizes.named_text(name)) for name in sizes.NAMED),
                (sizes.OWN, say("memory.own")),
            ),
            job_field="model.preset",
        ),
        accounting_control(group=_MODEL),
        *sizes.shape_controls(group=_MODEL),
        Slider(
            name="seq",
            label=say("memory.seq"),
            default=4096,
            group=_BATCH,
            options=scale(SEQUENCES, lambda seq: f"{seq:,}"),
            job_field="model.seq",
        ),
        Slider(
            name="micro_batch",
            label=say("memory.micro_batch"),
            default=1,
            group=_BATCH,
            options=scale(BATCHES),
            job_field="train.micro_batch",
        ),
        Choice(
            name="recompute",
            label=say("memory.recompute"),
            default="none",
            group=_BATCH,
            options=tuple((name, say(f"memory.recompute_{name}")) for name in ("none", "selective", "full")),
            job_field="train.recompute",
        ),
        Toggle(name="flash", label=say("memory.flash"), group=_BATCH, job_field="train.flash_attention"),
        Slider(
            name="tp",
            label=say("memory.tp"),
            default=1,
            group=_SPLIT,
            options=scale(TP),
            job_field="parallel.tp",
        ),
        Toggle(name="sp", label=say("memory.sp"), group=_SPLIT, job_field="train.sequence_parallel"),
        Slider(
            name="dp",
            label=say("memory.dp"),
            default=1,
            group=_SPLIT,
            options=scale(DP, lambda dp: f"{dp:,}"),
            job_field="parallel.dp",
        ),
        Choice(
            name="zero",
            label=say("memory.zero"),
            default=0,
            group=_SPLIT,
            options=tuple((stage, str(stage)) for stage in range(4)),
            job_field="train.zero_stage",
        ),
        sizes.gpu_control(group=_SPLIT),
    ),
    view=_view,
    adopt_job=_adopt,
)
