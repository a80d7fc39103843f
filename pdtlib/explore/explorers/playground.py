"""Explorer ``playground``: a whole job, and everything that follows from it on one page."""

from __future__ import annotations

from pdtlib.explore import sizes
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers import playground_job as jobs
from pdtlib.explore.explorers.playground_controls import CONTROLS
from pdtlib.explore.explorers.playground_panels import Prediction, panels, refused_panels
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import stages as drawing
from pdtlib.figures.amounts import count_words, gb_words, time_words
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.job import Job, JobError, to_toml
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import Problem
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


EXPLORER = Explorer(
    id="playground",
    title=say("playground.title"),
    lead=say("playground.lead"),
    controls=CONTROLS,
    view=_view,
    adopt_job=jobs.adopt,
)
