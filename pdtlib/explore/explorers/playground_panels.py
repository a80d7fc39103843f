"""What the playground shows below a job's memory: checks, time, schedule, messages, exports, commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdtlib.explore.explorers.schedule_legend import legend
from pdtlib.explore.view import File, Panel, Swatch, Table, rounded
from pdtlib.figures import lint as lint_drawing
from pdtlib.figures import schedule as schedule_drawing
from pdtlib.figures import step as step_drawing
from pdtlib.figures.amounts import bytes_words, time_words
from pdtlib.figures.words import say
from pdtlib.plan.export import export
from pdtlib.plan.job import Job, to_toml
from pdtlib.plan.lint import lint_deepspeed
from pdtlib.plan.schedule import FAMILIES, Timeline
from pdtlib.plan.spec import JobError, Problem
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.step import step_timeline
from pdtlib.plan.units import percent_text

TARGETS = {"deepspeed": "DeepSpeed", "megatron": "Megatron-LM", "torchtitan": "torchtitan"}
NAMES = ("checks", "time", "schedule", "messages", *TARGETS, "run")
MOST_DRAWN = 64  # passes of a micro-batch through a stage
DRAWN_DIGITS = 4  # of a time: less than a pixel
Prediction = Mapping[str, Any]


def panels(job: Job, prediction: Prediction) -> tuple[Panel, ...]:
    """Everything about a job that works."""
    return (
        _checks(prediction["warnings"]),
        _time(prediction),
        _schedule(job),
        _messages(prediction["comm"]),
        *(_export(job, target) for target in TARGETS),
        _run(job),
    )


def refused_panels(problems: Sequence[Problem]) -> tuple[Panel, ...]:
    """Why a job is refused, with the values that would do; the other panels have nothing to show."""
    checks = _panel(
        "checks",
        say("playground.refused", count=len(problems)),
        table=_problem_table(problems),
    )
    return (checks, *(_panel(name, say("playground.nothing")) for name in NAMES[1:]))


def _panel(name: str, summary: str, **content: Any) -> Panel:
    return Panel(name=name, title=say(f"playground.panel_{name}"), summary=summary, **content)


def _problem_table(problems: Sequence[Problem]) -> Table:
    return Table(
        caption=say("playground.table_problems"),
        columns=tuple(say(f"playground.column_{name}") for name in ("field", "reason", "valid")),
        rows=tuple(
            (problem.field, problem.message, ", ".join(map(str, problem.valid))) for problem in problems
        ),
    )


def _checks(warnings: Sequence[str]) -> Panel:
    text = say("playground.valid")
    return _panel(
        "checks", " ".join([text, *(f"{warning[0].upper()}{warning[1:]}." for warning in warnings)])
    )


def spent_s(prediction: Prediction) -> dict[str, float]:
    """Seconds of a step by part of :data:`pdtlib.figures.step.PARTS`; they add up to the step."""
    time = prediction["time"]
    return {"compute": time["compute_s"], "bubble": time["bubble_s"], **time["exposed_comm_s"]}


def _time(prediction: Prediction) -> Panel:
    seconds, whole = spent_s(prediction), prediction["time"]["step_s"]
    rates = prediction["throughput"]
    shown = [part for part in step_drawing.PARTS if seconds[part.name] > 0]
    return _panel(
        "time",
        say(
            "playground.time",
            step=time_words(whole),
            compute=percent_text(seconds["compute"] / whole),
            mfu=percent_text(rates["mfu"]),
            hfu=percent_text(rates["hfu"]),
        ),
        figure=step_drawing.figure(seconds),
        legend=tuple(
            Swatch(
                name=part.name,
                label=say(f"step.{part.name}"),
                color=part.color,
                pattern=part.pattern,
                text=time_words(seconds[part.name]),
                value=seconds[part.name],
                unit="s",
            )
            for part in shown
        ),
        table=Table(
            caption=say("playground.table_time"),
            columns=tuple(say(f"playground.column_{name}") for name in ("part", "time", "share")),
            rows=tuple(
                (
                    say(f"step.{part.name}"),
                    time_words(seconds[part.name]),
                    percent_text(seconds[part.name] / whole),
                )
                for part in shown
            ),
        ),
    )


def _schedule(job: Job) -> Panel:
    stages, whole = job.parallel.pp, job.gradient_accumulation
    if stages == 1:
        return _panel("schedule", say("playground.no_schedule", count=whole))
    drawn = min(whole, 2 * stages, MOST_DRAWN // stages)
    timeline = step_timeline(job, system=system_of(job), micro_batches=drawn)
    key = "playground.schedule" if drawn == whole else "playground.schedule_part"
    summary = say(
        key,
        name=FAMILIES[job.parallel.schedule].title,
        stages=stages,
        drawn=drawn,
        whole=whole,
        time=time_words(timeline.makespan),
        idle=percent_text(timeline.bubble_fraction),
    )
    schedule = timeline.schedule
    return _panel(
        "schedule",
        summary,
        figure=_drawn(timeline),
        legend=legend(timeline),
        table=Table(
            caption=say("playground.table_schedule"),
            columns=tuple(say(f"player.column_{name}") for name in ("stage", "busy", "idle", "peak")),
            rows=tuple(
                (
                    str(rank),
                    time_words(timeline.busy[rank]),
                    percent_text(max(0.0, 1 - timeline.busy[rank] / timeline.makespan)),
                    f"{timeline.peak_in_flight[rank]:g}",
                )
                for rank in range(schedule.stages)
            ),
        ),
    )


def _drawn(timeline: Timeline) -> dict[str, Any]:
    """The timeline as the schedule player draws it, light enough to be prepared for every first move."""
    figure: dict[str, Any] = rounded(schedule_drawing.figure(timeline), digits=DRAWN_DIGITS)
    for trace in figure["data"]:
        if trace["mode"] == "text":
            del trace["hovertext"]
            trace["hoverinfo"] = "skip"
    return figure


def _messages(rows: Sequence[Mapping[str, Any]]) -> Panel:
    sent: dict[str, float] = {}
    for row in rows:
        sent[row["axis"]] = sent.get(row["axis"], 0.0) + row["sent_bytes_per_rank"]
    if not rows:
        return _panel("messages", say("playground.no_messages"))
    words = ", ".join(f"{axis} {bytes_words(value)}" for axis, value in sent.items())
    columns = ("axis", "phase", "collective", "calls", "message", "sent")
    return _panel(
        "messages",
        say("playground.messages", sent=words),
        table=Table(
            caption=say("playground.table_messages"),
            columns=tuple(say(f"playground.column_{name}") for name in columns),
            rows=tuple(
                (
                    row["axis"],
                    row["phase"],
                    row["collective"],
                    f"{row['count']:,}",
                    bytes_words(row["message_bytes"]),
                    bytes_words(row["sent_bytes_per_rank"]),
                )
                for row in rows
            ),
        ),
    )


def _export(job: Job, target: str) -> Panel:
    """The files that a framework reads, or why it cannot; DeepSpeed's with its own verdict on each key."""
    try:
        made = export(job, to=target)
    except JobError as error:
        summary = say("playground.not_exported", target=TARGETS[target])
        return _panel(target, summary, table=_problem_table(error.problems))
    notes = "; ".join(made.notes)
    files = tuple(File(name=name, text=text) for name, text in made.files.items())
    if target != "deepspeed":
        return _panel(target, say("playground.exported", notes=notes), files=files)
    verdicts = lint_deepspeed(files[0].text)
    read = sum(verdict.verdict == "ok" for verdict in verdicts if verdict.key)
    summary = say(
        "playground.linted", notes=notes, read=read, keys=sum(bool(verdict.key) for verdict in verdicts)
    )
    table = Table(
        caption=say("lint.table"),
        columns=tuple(say(f"lint.column_{name}") for name in ("key", "verdict", "message")),
        rows=tuple(
            (lint_drawing.key_words(item.key), say(f"lint.{item.verdict}"), item.message) for item in verdicts
        ),
    )
    return _panel(target, summary, table=table, files=files)


def _run(job: Job) -> Panel:
    gpus = job.parallel.world_size
    commands = [
        "pdt predict job.toml",
        f"pdt plan job.toml --gpus {gpus} --top 5",
        "pdt dryrun job.toml --rank 0",
        *(f"pdt export job.toml --to {target} --out exported" for target in TARGETS),
        "pdt lint exported/deepspeed.json --for deepspeed",
        "pdt goodput job.toml",
        "pdt run job.toml --out run",
        "pdt compare run",
    ]
    return _panel(
        "run",
        say("playground.run", gpus=f"{gpus:,}"),
        files=(
            File(name="job.toml", text=to_toml(job)),
            File(name=say("playground.commands"), text="\n".join(commands) + "\n"),
        ),
    )
