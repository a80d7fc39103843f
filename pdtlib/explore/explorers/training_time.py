"""Explorer ``training-time``: days, GPU-hours and money from 6ND, and the utilisation a target asks for."""

from __future__ import annotations

from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Number, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers.training_run import Run
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import time as drawing
from pdtlib.figures.amounts import count_words, time_words
from pdtlib.figures.words import say
from pdtlib.plan import flops as work
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.params import count
from pdtlib.plan.units import DAY_S, HOUR_S, flops_text, percent_text

GPUS = (1, 8, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 16384, 24576, 32768, 65536, 131072)
MFUS = tuple(percent / 100 for percent in (10, 20, 25, 30, 35, 40, 43, 45, 50, 55, 60, 65, 70, 80, 90, 100))
TARGETS = (2, 3, 7, 11, 14, 21, 30, 60, 90, 180, 365)
ROWS = (0.3, 0.4, 0.45, 0.5, 1.0)


def _run(values: Values) -> Run:
    params = sizes.num_params(values)
    if values["model"] in sizes.NAMED:
        params = count(presets.model(values["model"])).active
    return Run(
        params=params,
        tokens=values["tokens"],
        flops=work.training_flops(params, num_tokens=values["tokens"]),
        gpu=presets.GPUS[values["gpu"]],
        gpus=values["gpus"],
        mfu=values["mfu"],
        target_days=values["target"],
    )


def _view(values: Values) -> View:
    run = _run(values)
    target, share = run.target_days, percent_text(run.mfu, digits=0)
    return View(
        figure=drawing.figure(
            run.flops,
            gpus=run.gpus,
            counts=GPUS,
            peak_flops=run.gpu.peak_flops,
            mfu=run.mfu,
            target_days=target,
        ),
        summary=_summary(run),
        readouts=_readouts(values, run),
        legend=(
            Swatch(name="here", label=say("time.curve", mfu=share), color="c1"),
            Swatch(name="bound", label=say("time.curve_bound"), color="muted", pattern="dots"),
            Swatch(name="goal", label=say("time.goal", days=target), color="bad", pattern="line"),
        ),
        table=Table(
            caption=say("time.table", gpus=f"{run.gpus:,}", gpu=run.gpu.name),
            columns=(
                say("time.column_mfu"),
                say("time.column_days"),
                say("time.column_hours"),
                say("time.column_gpus", days=target),
            ),
            rows=tuple(_row(run, mfu) for mfu in sorted({*ROWS, run.mfu})),
        ),
        notes=_notes(values, run),
        job=_job(values),
    )


def _row(run: Run, mfu: float) -> tuple[str, ...]:
    days = run.days(mfu=mfu)
    hours = run.gpus * days * DAY_S / HOUR_S
    return (percent_text(mfu, digits=0), f"{days:,.1f}", f"{hours:,.0f}", f"{run.needed_gpus(mfu):,}")


def _summary(run: Run) -> str:
    words = {
        "gpus": f"{run.gpus:,}",
        "gpu": run.gpu.name,
        "mfu": percent_text(run.mfu, digits=0),
        "params": count_words(run.params),
        "tokens": count_words(run.tokens),
        "time": time_words(run.days() * DAY_S),
        "target": run.target_days,
        "needed": percent_text(run.needed_mfu),
        "more": f"{run.needed_gpus(run.mfu):,}",
    }
    if run.needed_mfu > 1:
        verdict = "impossible"
    else:
        verdict = "met" if run.days() <= run.target_days else "missed"
    return f"{say('time.summary', **words)} {say(f'time.summary_{verdict}', **words)}"


def _readouts(values: Values, run: Run) -> tuple[Readout, ...]:
    words = {"params": count_words(run.params), "tokens": count_words(run.tokens)}
    bound = run.days(gpus=1, mfu=1.0)
    readouts = [
        Readout(
            name="flops",
            label=say("time.flops"),
            text=flops_text(run.flops),
            value=run.flops,
            unit="flops",
            note=say("time.flops_note", **words),
        ),
        Readout(
            name="days",
            label=say("time.days"),
            text=say("time.days_text", days=run.days()),
            value=run.days(),
            unit="",
            tone="good" if run.days() <= run.target_days else "bad",
        ),
        Readout(
            name="gpu_hours",
            label=say("time.gpu_hours"),
            text=f"{run.gpu_hours:,.0f}",
            value=run.gpu_hours,
            unit="count",
            note=say("time.gpu_days_note", days=run.gpus * run.days(), bound=bound),
        ),
        _needed(run),
        Readout(
            name="throughput",
            label=say("time.throughput"),
            text=f"{run.tokens / (run.gpu_hours * HOUR_S):,.0f}",
            value=run.tokens / (run.gpu_hours * HOUR_S),
            unit="count",
        ),
    ]
    if values["recompute"]:
        executed = work.training_flops(run.params, num_tokens=run.tokens, recompute=True)
        readouts.append(
            Readout(
                name="hardware",
                label=say("time.hardware"),
                text=flops_text(executed),
                value=executed,
                unit="flops",
                note=say("time.hardware_note"),
            )
        )
    if values["price"]:
        cost = run.gpu_hours * values["price"]
        price = sizes.price_text(values["price"])
        readouts.append(
            Readout(
                name="money",
                label=say("time.money"),
                text=f"${cost:,.0f}",
                value=cost,
                unit="money",
                note=say("time.money_note", price=price),
            )
        )
    return tuple(readouts)


def _needed(run: Run) -> Readout:
    needed = run.needed_mfu
    if needed > 1:
        note = say("time.needed_impossible")
    elif run.best_share is not None and needed > run.best_share:
        note = say("time.needed_hard", best=percent_text(run.best_share))
    else:
        note = say("time.needed_possible", peak=f"{run.gpu.peak_flops / 1e12:,.0f}")
    return Readout(
        name="needed",
        label=say("time.needed", days=run.target_days),
        text=percent_text(needed),
        value=needed,
        unit="share",
        note=note,
        tone="bad" if needed > (run.best_share or 1) else "",
    )


def _notes(values: Values, run: Run) -> tuple[str, ...]:
    notes = [say("time.note_epoch")]
    if run.best_share is not None:
        key = "time.note_over" if run.mfu > run.best_share else "time.note_ceiling"
        words = {"gpu": run.gpu.name, "best": percent_text(run.best_share)}
        notes.insert(0, say(key, **words, mfu=percent_text(run.mfu, digits=0)))
    if values["model"] in sizes.NAMED:
        counted = count(presets.model(values["model"]))
        if counted.active != counted.total:
            words = {"active": count_words(counted.active), "total": count_words(counted.total)}
            notes.append(say("time.note_moe", **words))
    return tuple(notes)


def _job(values: Values) -> str:
    if values["model"] not in sizes.NAMED:
        return ""
    return to_toml(
        from_dict(
            {
                "model": {"preset": values["model"]},
                "train": {"recompute": "full" if values["recompute"] else "none"},
                "hardware": {"gpu": values["gpu"], "n_gpus": values["gpus"]},
            }
        )
    )


def _adopt(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = {
        **sizes.adopted_model(job),
        "gpus": sizes.nearest(GPUS, job.hardware.n_gpus),
        "recompute": job.train.recompute == "full",
    }
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    return state


_WORK = say("time.group_work")
_CLUSTER = say("time.group_cluster")
_GOAL = say("time.group_goal")

EXPLORER = Explorer(
    id="training-time",
    title=say("time.title"),
    lead=say("time.lead"),
    controls=(
        *sizes.model_controls("70b", group=_WORK),
        Number(
            name="tokens",
            label=say("time.tokens"),
            default="1T",
            minimum=1e6,
            maximum=1e15,
            group=_WORK,
            help=say("size.params_help"),
            suggestions=("300B", "1.4T", "2T", "15T"),
        ),
        Toggle(name="recompute", label=say("time.recompute"), group=_WORK),
        Slider(
            name="gpus",
            label=say("time.gpus"),
            default=2048,
            group=_CLUSTER,
            options=scale(GPUS, lambda gpus: f"{gpus:,}"),
            job_field="hardware.n_gpus",
        ),
        sizes.gpu_control(group=_CLUSTER),
        Slider(
            name="mfu",
            label=say("time.mfu"),
            default=0.45,
            group=_CLUSTER,
            help=say("time.mfu_help"),
            options=scale(MFUS, lambda mfu: percent_text(mfu, digits=0)),
        ),
        Slider(
            name="target",
            label=say("time.target"),
            default=11,
            group=_GOAL,
            options=scale(TARGETS, lambda days: say("time.target_text", days=days)),
        ),
        sizes.price_control(default=0.0, group=_GOAL),
    ),
    view=_view,
    adopt_job=_adopt,
)
