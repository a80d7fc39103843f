"""Explorer ``zero``: what each ZeRO stage leaves on a GPU, from which N it fits, and what it sends."""

from __future__ import annotations

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.precision import ACCOUNTINGS, accounting_control, accounting_of
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import zero as drawing
from pdtlib.figures.amounts import gb_words
from pdtlib.figures.parts import STATE_PARTS
from pdtlib.figures.words import say
from pdtlib.plan import presets, states
from pdtlib.plan.comm import zero_messages
from pdtlib.plan.job import Job, from_dict, to_toml

STAGES = range(4)
RANKS = (1, 2, 3, 4, 6, 8, 10, 11, 12, 14, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


def _sent_bytes(values: Values, stage: int, *, params: int, element_bytes: tuple[int, int]) -> float:
    messages = zero_messages(
        params,
        dp=values["ranks"],
        stage=stage,
        param_bytes=element_bytes[0],
        grad_bytes=element_bytes[1],
        micro_batches=values["micro_batches"],
        reshard_after_forward=not values["keep"],
    )
    return sum(message.sent_bytes_per_rank for message in messages)


def _view(values: Values) -> View:
    params, ranks, chosen = sizes.num_params(values), values["ranks"], values["stage"]
    accounting = states.ACCOUNTINGS[values["accounting"]]
    capacity = presets.GPUS[values["gpu"]].memory_bytes
    bytes_each = (accounting.params, accounting.grads)
    held = [states.zero_state_bytes(params, dp=ranks, stage=s, accounting=accounting) for s in STAGES]
    starts = [
        states.fits_from(params, capacity_bytes=capacity, stage=s, accounting=accounting) for s in STAGES
    ]
    sent = [_sent_bytes(values, s, params=params, element_bytes=bytes_each) for s in STAGES]
    share = params * (ranks - 1) / ranks
    volumes = [
        _sent_bytes(values, s, params=params, element_bytes=(1, 1)) / share if share else 0.0 for s in STAGES
    ]
    names = [say(f"stage.{s}") for s in STAGES]
    room = gb_words(capacity)
    return View(
        figure=drawing.figure(held, sent, capacity_bytes=capacity),
        summary=_summary(
            names[chosen], ranks, held[chosen], starts[chosen], capacity, accounting, chosen, params
        ),
        readouts=(
            *(
                Readout(
                    name=f"stage{s}",
                    label=say("zero.total", stage=names[s]),
                    text=gb_words(held[s].total),
                    value=held[s].total,
                    unit="bytes",
                    note=_fits_note(starts[s], room),
                    tone="good" if held[s].total <= capacity else "bad",
                )
                for s in STAGES
            ),
            Readout(
                name="sent",
                label=say("zero.volume", stage=names[chosen]),
                text=gb_words(sent[chosen]),
                value=sent[chosen],
                unit="bytes",
                note=say("zero.volume_note", factor=f"{volumes[chosen]:g}"),
            ),
        ),
        legend=(
            *(
                Swatch(
                    name=part.name, label=say(f"state.{part.name}"), color=part.color, pattern=part.pattern
                )
                for part in STATE_PARTS
            ),
            Swatch(
                name="capacity",
                label=say("state.capacity", gpu=values["gpu"]),
                color="bad",
                pattern="line",
                text=room,
                value=capacity,
                unit="bytes",
            ),
        ),
        table=Table(
            caption=say("zero.table", ranks=ranks),
            columns=(
                say("zero.column_stage"),
                *(say(f"state.{part.name}") for part in STATE_PARTS),
                *(say(f"zero.column_{name}") for name in ("total", "fits", "from", "sent", "volume")),
            ),
            rows=tuple(
                (
                    names[s],
                    *(gb_words(getattr(held[s], part.name)) for part in STATE_PARTS),
                    gb_words(held[s].total),
                    say("zero.yes" if held[s].total <= capacity else "zero.no"),
                    str(starts[s] or say("zero.never")),
                    gb_words(sent[s]),
                    f"{volumes[s]:g}",
                )
                for s in STAGES
            ),
        ),
        notes=_notes(values, names[chosen], gathered=share * accounting.params, sent=(sent[0], sent[chosen])),
        job=_job(values),
    )


def _summary(
    name: str,
    ranks: int,
    held: states.StateBytes,
    start: int | None,
    capacity: float,
    accounting: states.Accounting,
    stage: int,
    params: int,
) -> str:
    fits = held.total <= capacity
    text = say(
        "zero.fits_here" if fits else "zero.fits_not",
        stage=name,
        ranks=ranks,
        total=gb_words(held.total),
        capacity=gb_words(capacity),
    )
    if fits:
        return text
    if start is not None:
        return f"{text} {say('zero.fits_more', needed=start)}"
    whole, _ = states.whole_and_sharded(accounting, stage)
    return f"{text} {say('zero.fits_no_more', whole=gb_words(params * whole))}"


def _fits_note(start: int | None, room: str) -> str:
    if start is None:
        return say("zero.fits_never", capacity=room)
    return say("zero.fits_from", capacity=room, ranks=start)


def _notes(values: Values, name: str, *, gathered: float, sent: tuple[float, float]) -> tuple[str, ...]:
    plain, chosen = sent
    notes = [say("zero.note_states")]
    if values["keep"] and values["stage"] == 3:
        notes.insert(0, say("zero.note_keep", gathered=gb_words(gathered)))
    if plain and values["stage"]:
        ratio = chosen / plain
        words = {"dp": gb_words(plain), "stage": name, "ratio": f"{ratio:.3g}"}
        notes.append(say("zero.note_as_dp" if ratio == 1 else "zero.note_dp", **words))
    return tuple(notes)


def _job(values: Values) -> str:
    if values["model"] not in sizes.NAMED:
        return ""
    ranks, micro_batches = values["ranks"], values["micro_batches"]
    return to_toml(
        from_dict(
            {
                "model": {"preset": values["model"]},
                "train": {
                    "global_batch": ranks * micro_batches,
                    "zero_stage": values["stage"],
                    "reshard_after_forward": not values["keep"],
                    **ACCOUNTINGS[values["accounting"]],
                },
                "parallel": {"dp": ranks},
                "hardware": {"gpu": values["gpu"]},
            }
        )
    )


def _adopt(job: Job) -> dict[str, object]:
    state: dict[str, object] = {
        **sizes.adopted_model(job),
        "ranks": sizes.nearest(RANKS, job.parallel.dp),
        "micro_batches": sizes.nearest(MICRO_BATCHES, job.gradient_accumulation),
        "keep": not job.train.reshard_after_forward,
        "stage": job.train.zero_stage,
        "accounting": accounting_of(job),
    }
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    return state


_MODEL = say("zero.group_model")
_CLUSTER = say("zero.group_cluster")
_RUN = say("zero.group_run")

EXPLORER = Explorer(
    id="zero",
    title=say("zero.title"),
    lead=say("zero.lead"),
    controls=(
        Slider(name="ranks", label=say("zero.ranks"), default=8, group=_CLUSTER, options=scale(RANKS)),
        sizes.gpu_control(group=_CLUSTER),
        *sizes.model_controls("70b", group=_MODEL),
        accounting_control(group=_MODEL),
        Choice(
            name="stage",
            label=say("zero.stage"),
            default=3,
            group=_RUN,
            options=tuple((stage, str(stage)) for stage in STAGES),
            job_field="train.zero_stage",
        ),
        Slider(
            name="micro_batches",
            label=say("zero.micro_batches"),
            default=1,
            group=_RUN,
            help=say("zero.micro_batches_help"),
            options=scale(MICRO_BATCHES),
        ),
        Toggle(name="keep", label=say("zero.keep"), group=_RUN),
    ),
    view=_view,
    adopt_job=_adopt,
)
