"""Explorer ``playground``: a whole job, and everything that follows from it on one page."""

from __future__ import annotations

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, Number, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers import playground_job as jobs
from pdtlib.explore.explorers.playground_panels import Prediction, panels, refused_panels
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import stages as drawing
from pdtlib.figures.amounts import count_words, gb_words, time_words
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.job import Job, JobError, to_toml
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import SCHEDULES, Problem
from pdtlib.plan.units import DAY_S, HOUR_S, percent_text


def _view(values: Values) -> View:
    try:
        job = jobs.job_of(values)
    except JobError as error:
        return _refused(error.problems)
    prediction = predict(job)
    capacity = presets.GPUS[job.hardware.gpu].memory_bytes
    stages = _stages(prediction)
    fullest = max(sum(stage.values()) for stage in stages)
    fits = fullest <= capacity
    return View(
        figure=drawing.figure(stages, capacity_bytes=capacity),
        summary=say(
            "playground.summary" if fits else "playground.summary_over",
            params=count_words(prediction["params"]["total"]),
            gpus=f"{job.parallel.world_size:,}",
            gpu=job.hardware.gpu,
            memory=gb_words(fullest),
            capacity=gb_words(capacity),
            step=time_words(prediction["time"]["step_s"]),
            mfu=percent_text(prediction["throughput"]["mfu"]),
        ),
        readouts=_readouts(values, job, prediction, fullest=fullest, capacity=capacity),
        legend=(
            *(
                Swatch(
                    name=part.name, label=say(f"stages.{part.name}"), color=part.color, pattern=part.pattern
                )
                for part in drawing.PARTS
                if any(stage[part.name] for stage in stages)
            ),
            Swatch(
                name="capacity",
                label=say("state.capacity", gpu=job.hardware.gpu),
                color="bad",
                pattern="line",
                text=gb_words(capacity),
                value=capacity,
                unit="bytes",
            ),
        ),
        table=_table(job, prediction, stages),
        notes=(say("playground.note_time"), say("playground.note_cost")),
        job=to_toml(job),
        panels=panels(job, prediction),
    )


def _stages(prediction: Prediction) -> list[dict[str, float]]:
    """Bytes of each of :data:`drawing.PARTS` on a rank of each stage."""
    memory = prediction["memory"]
    return [
        {
            **{part.name: stage[part.name] for part in drawing.PARTS if part.name in stage},
            "framework": memory["framework_overhead"],
        }
        for stage in memory["stages"]
    ]


def _table(job: Job, prediction: Prediction, stages: list[dict[str, float]]) -> Table:
    held = prediction["layout"]["stages"]
    return Table(
        caption=say("playground.table", ranks=job.parallel.world_size // job.parallel.pp),
        columns=(
            say("player.column_stage"),
            say("playground.column_layers"),
            *(say(f"stages.{part.name}") for part in drawing.PARTS),
            say("memory.total"),
        ),
        rows=tuple(
            (
                str(number),
                str(held[number]["layers"]),
                *(gb_words(stage[part.name]) for part in drawing.PARTS),
                gb_words(sum(stage.values())),
            )
            for number, stage in enumerate(stages)
        ),
    )


def _readouts(
    values: Values, job: Job, prediction: Prediction, *, fullest: float, capacity: float
) -> tuple[Readout, ...]:
    rates, fits = prediction["throughput"], fullest <= capacity
    seconds = values["tokens"] / rates["tokens_per_s"]
    hours = seconds / HOUR_S * job.parallel.world_size
    total, active = prediction["params"]["total"], prediction["params"]["active"]
    readouts = [
        Readout(
            name="verdict",
            label=say("playground.verdict"),
            text=say("playground.verdict_fits" if fits else "playground.verdict_over"),
            note=say("playground.verdict_note", memory=gb_words(fullest), capacity=gb_words(capacity)),
            tone="good" if fits else "bad",
        ),
        Readout(
            name="params",
            label=say("playground.params"),
            text=count_words(total),
            value=total,
            unit="count",
            note="" if active == total else say("playground.params_note", active=count_words(active)),
        ),
        Readout(
            name="gpus",
            label=say("time.gpus"),
            text=f"{job.parallel.world_size:,}",
            value=job.parallel.world_size,
            unit="count",
            note=say("playground.gpus_note", count=job.gradient_accumulation),
        ),
        Readout(
            name="step",
            label=say("planner.step"),
            text=time_words(prediction["time"]["step_s"]),
            value=prediction["time"]["step_s"],
            unit="s",
            note=say("playground.step_note", tokens=count_words(job.train.global_batch * job.model.seq)),
        ),
        Readout(
            name="mfu",
            label=say("planner.mfu"),
            text=percent_text(rates["mfu"]),
            value=rates["mfu"],
            unit="share",
            note=say("playground.mfu_note", rate=f"{rates['tflops_per_gpu']:,.0f}"),
        ),
        Readout(
            name="days",
            label=say("time.days"),
            text=say("time.days_text", days=seconds / DAY_S),
            value=seconds / DAY_S,
            note=say("playground.days_note", rate=f"{rates['tokens_per_s']:,.0f}"),
        ),
        Readout(
            name="hours",
            label=say("time.gpu_hours"),
            text=f"{hours:,.0f}",
            value=hours,
            unit="count",
        ),
    ]
    if values["price"]:
        money = hours * values["price"]
        readouts.append(
            Readout(
                name="money",
                label=say("time.money"),
                text=f"${money:,.0f}",
                value=money,
                unit="money",
                note=say("time.money_note", price=sizes.price_text(values["price"])),
            )
        )
    return tuple(readouts)


def _refused(problems: list[Problem]) -> View:
    """A job that cannot work: its reasons in place of a picture."""
    first, *others = problems
    more = say("playground.summary_more", count=len(others)) if others else ""
    message = say("playground.no_picture")
    return View(
        figure={
            "data": [],
            "layout": layout(
                height=90,
                xaxis=axis(visible=False),
                yaxis=axis(visible=False),
                annotations=[
                    {
                        "text": message,
                        "showarrow": False,
                        "xref": "paper",
                        "yref": "paper",
                        "x": 0.5,
                        "y": 0.5,
                    }
                ],
            ),
        },
        summary=f"{say('playground.summary_refused', reason=str(first).rstrip('.'))}{more}.",
        readouts=(
            Readout(
                name="verdict",
                label=say("playground.verdict"),
                text=say("playground.verdict_refused"),
                note=say("playground.refused", count=len(problems)),
                tone="bad",
            ),
        ),
        table=Table(
            caption=say("playground.table_problems"),
            columns=tuple(say(f"playground.column_{name}") for name in ("field", "reason")),
            rows=tuple((problem.field, problem.message) for problem in problems),
        ),
        panels=refused_panels(problems),
    )


_MODEL, _TRAIN, _SPLIT, _HARDWARE = (
    say(f"playground.group_{name}") for name in ("model", "train", "split", "hardware")
)
_MOE = ("model", (sizes.OWN,))
_WITH_CP = ("cp", tuple(str(degree) for degree in jobs.DEGREES["cp"] if degree > 1))

EXPLORER = Explorer(
    id="playground",
    title=say("playground.title"),
    lead=say("playground.lead"),
    controls=(
        Choice(
            name="model",
            label=say("size.label"),
            default="llama2-70b",
            group=_MODEL,
            options=(
                *((name, sizes.named_text(name)) for name in jobs.MODELS),
                (sizes.OWN, say("memory.own")),
            ),
            job_field="model.preset",
        ),
        *sizes.shape_controls(group=_MODEL),
        Number(
            name="experts",
            label=say("playground.experts"),
            default=0,
            minimum=0,
            maximum=1024,
            group=_MODEL,
            help=say("playground.experts_help"),
            when=_MOE,
            suggestions=("8", "64"),
            job_field="model.moe.experts",
        ),
        Number(
            name="top_k",
            label=say("playground.top_k"),
            default=2,
            minimum=1,
            maximum=64,
            group=_MODEL,
            when=_MOE,
            suggestions=("1", "8"),
            job_field="model.moe.top_k",
        ),
        Number(
            name="seq",
            label=say("memory.seq"),
            default=4096,
            minimum=16,
            maximum=2**24,
            group=_MODEL,
            suggestions=("2048", "8192", "32768", "131072"),
            job_field="model.seq",
        ),
        Number(
            name="global_batch",
            label=say("playground.global_batch"),
            default=128,
            minimum=1,
            maximum=1_000_000,
            group=_TRAIN,
            suggestions=("64", "512", "1024", "2048"),
            job_field="train.global_batch",
        ),
        Slider(
            name="micro_batch",
            label=say("memory.micro_batch"),
            default=1,
            group=_TRAIN,
            options=scale(jobs.MICRO_BATCHES),
            job_field="train.micro_batch",
        ),
        Choice(
            name="precision",
            label=say("playground.precision"),
            default="bf16",
            group=_TRAIN,
            options=scale(("bf16", "fp16", "fp8", "fp32")),
            job_field="train.precision",
        ),
        Choice(
            name="grad_precision",
            label=say("playground.grad_precision"),
            default="fp32",
            group=_TRAIN,
            options=tuple((name, say(f"playground.grads_{name}")) for name in ("same", "fp32")),
            job_field="train.grad_precision",
        ),
        Choice(
            name="recompute",
            label=say("memory.recompute"),
            default="none",
            group=_TRAIN,
            options=tuple((name, say(f"memory.recompute_{name}")) for name in ("none", "selective", "full")),
            job_field="train.recompute",
        ),
        Toggle(
            name="flash_attention",
            label=say("memory.flash"),
            default=True,
            group=_TRAIN,
            job_field="train.flash_attention",
        ),
        Number(
            name="dp",
            label=say("memory.dp"),
            default=2,
            minimum=1,
            maximum=100_000,
            group=_SPLIT,
            suggestions=("1", "4", "8", "16", "64"),
            job_field="parallel.dp",
        ),
        Choice(
            name="zero_stage",
            label=say("memory.zero"),
            default=1,
            group=_SPLIT,
            options=scale(range(4)),
            job_field="train.zero_stage",
        ),
        *(
            Slider(
                name=name,
                label=say(f"playground.{name}"),
                default={"tp": 8, "pp": 4}.get(name, 1),
                group=_SPLIT,
                options=scale(options),
                job_field=f"parallel.{name}",
            )
            for name, options in jobs.DEGREES.items()
        ),
        Toggle(
            name="sequence_parallel",
            label=say("memory.sp"),
            default=True,
            group=_SPLIT,
            job_field="train.sequence_parallel",
        ),
        Choice(
            name="schedule",
            label=say("player.schedule"),
            default="1f1b",
            group=_SPLIT,
            options=scale(SCHEDULES),
            job_field="parallel.schedule",
        ),
        Slider(
            name="vpp",
            label=say("player.chunks"),
            default=2,
            group=_SPLIT,
            options=scale(jobs.CHUNKS),
            when=("schedule", ("interleaved",)),
            job_field="parallel.vpp",
        ),
        Choice(
            name="context",
            label=say("playground.context"),
            default="ring",
            group=_SPLIT,
            options=scale(("ring", "ulysses")),
            when=_WITH_CP,
            job_field="parallel.context",
        ),
        Choice(
            name="cluster",
            label=say("planner.cluster"),
            default="dgx-h100",
            group=_HARDWARE,
            options=scale(tuple(presets.CLUSTERS)),
            job_field="hardware.cluster",
        ),
        Number(
            name="tokens",
            label=say("time.tokens"),
            default="2T",
            minimum=1e6,
            maximum=1e16,
            group=_HARDWARE,
            suggestions=("300B", "1T", "15T"),
        ),
        sizes.price_control(default=2.5, group=_HARDWARE),
    ),
    view=_view,
    adopt_job=jobs.adopt,
)
