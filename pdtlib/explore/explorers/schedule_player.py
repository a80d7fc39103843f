"""Explorer ``schedule-player``: a schedule over time, what each stage holds, and edits of its table."""

from __future__ import annotations

from pdtlib.explore.controls import Choice, ControlError, Player, Slider, Text, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers import schedule_case as cases
from pdtlib.explore.explorers.schedule_edits import read_edits
from pdtlib.explore.explorers.schedule_legend import legend
from pdtlib.explore.view import Readout, Table, View
from pdtlib.figures import layers as strips
from pdtlib.figures import schedule as drawing
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.schedule import (
    FAMILIES,
    Fault,
    Schedule,
    Timeline,
    build,
    first_fault,
    schedule_problems,
    simulate,
)
from pdtlib.plan.units import percent_text

MOST_MOMENTS = 90


def _view(values: Values) -> View:
    refused = schedule_problems(
        values["schedule"], stages=values["stages"], microbatches=values["microbatches"]
    )
    if refused:
        raise ControlError(refused[0].field, str(refused[0]))
    case = cases.case_of(values)
    fault = first_fault(case.schedule)
    return _illegal(case, fault, values) if fault else _legal(case, values)


def _legal(case: cases.Case, values: Values) -> View:
    timeline = simulate(case.schedule, case.costs)
    moments = _moments(timeline)
    step = min(values["step"], len(moments))
    until = moments[step - 1] if step else None
    peaks = timeline.peak_in_flight
    held = [
        max(held for _, held in timeline.memory(stage, kept_for_weight=case.kept))
        for stage in range(case.schedule.stages)
    ]
    return View(
        figure=drawing.figure(
            timeline, until=until, kept_for_weight=case.kept, layers=cases.layers_of(values)
        ),
        summary=" ".join(drawing.sentences(timeline)[:2]) if until is None else _moment(timeline, until),
        readouts=(
            Readout(
                name="makespan",
                label=say("player.makespan"),
                text=f"{timeline.makespan:g}",
                value=timeline.makespan,
                note=say("player.makespan_note"),
            ),
            Readout(
                name="bubble",
                label=say("player.bubble"),
                text=percent_text(timeline.bubble_fraction),
                value=timeline.bubble_fraction,
                unit="share",
                note=_formula(case, values),
            ),
            Readout(
                name="rate",
                label=say("player.rate"),
                text=percent_text(timeline.bubble_rate, digits=2),
                value=timeline.bubble_rate,
                unit="share",
                note=say("player.rate_note"),
            ),
            Readout(
                name="peak",
                label=say("player.peak"),
                text=f"{max(held):.4g}",
                value=max(held),
                note=say("player.peak_note", peaks=", ".join(f"{peak:g}" for peak in peaks)),
            ),
            Readout(
                name="legal",
                label=say("player.legal"),
                text=say("player.legal_edited" if values["edit"] else "player.legal_yes"),
                tone="good",
            ),
        ),
        legend=legend(timeline),
        table=_table(timeline, held, values),
        notes=_notes(timeline, case, values),
        job=cases.job_toml(values),
        limits={"step": len(moments) + 1},
    )


def _illegal(case: cases.Case, fault: Fault, values: Values) -> View:
    schedule = case.schedule
    where = say("player.fault", stage=fault.rank, cell=fault.index, message=fault.message)
    return View(
        figure=drawing.order(schedule, mark=(fault.rank, fault.index)),
        summary=f"{say('player.illegal')} {where}.",
        readouts=(
            Readout(
                name="legal", label=say("player.legal"), text=say("player.legal_no"), note=where, tone="bad"
            ),
        ),
        table=Table(
            caption=say("player.table_order"),
            columns=(say("player.column_stage"), say("player.column_layers"), say("player.column_order")),
            rows=tuple(
                (
                    str(rank),
                    strips.words(schedule.layout, cases.layers_of(values), rank),
                    _order(schedule, rank, mark=fault.index if rank == fault.rank else None),
                )
                for rank in range(schedule.stages)
            ),
        ),
        notes=(say("player.note_illegal"),),
        job=cases.job_toml(values),
        limits={"step": 1},
    )


def _moments(timeline: Timeline) -> list[float]:
    """The times at which some action starts, thinned out evenly where there are too many to step through."""
    starts = sorted({round(start, 9) for starts in timeline.start for start in starts})
    later = [start for start in starts if start > 0] + [timeline.makespan]
    every = -(-len(later) // MOST_MOMENTS)
    return later[every - 1 :: every] if every > 1 else later


def _moment(timeline: Timeline, now: float) -> str:
    """What every stage does just before ``now``."""
    doing = []
    for stage, program in enumerate(timeline.schedule.programs):
        acts = [
            str(act)
            for act, start, end in zip(program, timeline.start[stage], timeline.end[stage], strict=True)
            if start < now - 1e-9 and end > now - 1e-9
        ]
        key = "player.does" if acts else "player.waits"
        doing.append(say(key, stage=stage, act=" + ".join(acts)))
    return say("player.moment", time=f"{now:.4g}", end=f"{timeline.makespan:.4g}", doing="; ".join(doing))


def _formula(case: cases.Case, values: Values) -> str:
    """The closed form of the bubble, where there is one for this setting."""
    stages, microbatches, chunks = values["stages"], values["microbatches"], values["chunks"]
    if values["edit"] or values["uneven"] != "none" or values["transfer"]:
        return say("player.no_formula")
    if values["schedule"] in ("gpipe", "1f1b"):
        return say("player.formula", p=stages, m=microbatches)
    if values["schedule"] == "interleaved" and microbatches % stages == 0:
        return say("player.formula_interleaved", p=stages, m=microbatches, v=chunks)
    if values["schedule"] == "naive":
        return say("player.formula_naive", p=stages)
    return say("player.no_formula")


def _notes(timeline: Timeline, case: cases.Case, values: Values) -> tuple[str, ...]:
    notes = list(drawing.sentences(timeline)[2:])
    plain = simulate(
        build("1f1b", stages=case.schedule.stages, microbatches=case.schedule.microbatches), case.costs
    )
    if values["schedule"] != "1f1b" or values["edit"]:
        share = timeline.makespan / plain.makespan - 1
        how = "same" if abs(share) < 5e-4 else "slower" if share > 0 else "faster"
        notes.append(say(f"player.note_{how}", plain=f"{plain.makespan:g}", share=percent_text(abs(share))))
    if values["schedule"] == "article":
        notes.append(say("player.note_article"))
    for target in ("megatron", "torch"):
        problems = schedule_problems(
            values["schedule"],
            stages=case.schedule.stages,
            microbatches=case.schedule.microbatches,
            chunks=case.schedule.chunks,
            target=target,
        )
        if problems:
            notes.append(say("player.note_target", message=problems[0].message))
    notes.append(say("player.note_times"))
    return tuple(notes)


def _table(timeline: Timeline, held: list[float], values: Values) -> Table:
    schedule, end = timeline.schedule, timeline.makespan
    return Table(
        caption=say("player.table", makespan=f"{end:g}"),
        columns=tuple(
            say(f"player.column_{name}") for name in ("stage", "layers", "busy", "idle", "peak", "order")
        ),
        rows=tuple(
            (
                str(rank),
                strips.words(schedule.layout, cases.layers_of(values), rank),
                f"{timeline.busy[rank]:.4g}",
                percent_text(max(0.0, 1 - timeline.busy[rank] / end)),
                f"{held[rank]:.4g}",
                _order(schedule, rank),
            )
            for rank in range(schedule.stages)
        ),
    )


def _order(schedule: Schedule, rank: int, mark: int | None = None) -> str:
    cells = [str(act) for act in schedule.programs[rank]]
    if mark is not None:
        cells += [say("player.missing")] * (mark + 1 - len(cells))
        cells[mark] = f">{cells[mark]}<"
    return " ".join(cells)


_TABLE, _TIMES, _PLAY = (say(f"player.group_{name}") for name in ("table", "times", "play"))

EXPLORER = Explorer(
    id="schedule-player",
    title=say("player.title"),
    lead=say("player.lead"),
    controls=(
        Choice(
            name="schedule",
            label=say("player.schedule"),
            default="1f1b",
            group=_TABLE,
            options=tuple((name, family.title) for name, family in FAMILIES.items()),
            job_field="parallel.schedule",
        ),
        Slider(
            name="stages",
            label=say("player.stages"),
            default=4,
            group=_TABLE,
            options=scale(cases.STAGES),
            job_field="parallel.pp",
        ),
        Slider(
            name="microbatches",
            label=say("player.microbatches"),
            default=8,
            group=_TABLE,
            options=scale(cases.MICRO_BATCHES),
        ),
        Slider(
            name="chunks",
            label=say("player.chunks"),
            default=2,
            group=_TABLE,
            options=scale(cases.CHUNKS),
            when=("schedule", ("interleaved",)),
        ),
        Choice(
            name="model",
            label=say("player.model"),
            default=cases.ARTICLE,
            group=_TABLE,
            options=(
                (cases.ARTICLE, say("player.model_article", layers=cases.ARTICLE_LAYERS)),
                *(
                    (name, say("player.model_named", name=name, layers=presets.model(name).layers))
                    for name in cases.MODELS
                ),
            ),
            job_field="model.preset",
        ),
        Slider(
            name="backward",
            label=say("player.backward"),
            default=2.0,
            group=_TIMES,
            options=scale(cases.BACKWARDS, lambda time: say("player.forwards", count=f"{time:g}")),
        ),
        Slider(
            name="transfer",
            label=say("player.transfer"),
            default=0.0,
            group=_TIMES,
            options=scale(cases.TRANSFERS, lambda time: say("player.forwards", count=f"{time:g}")),
        ),
        Choice(
            name="uneven",
            label=say("player.uneven"),
            default="none",
            group=_TIMES,
            options=tuple((name, say(f"player.uneven_{name}")) for name in cases.UNEVEN),
        ),
        Slider(
            name="slower",
            label=say("player.slower"),
            default=1.5,
            group=_TIMES,
            options=scale(cases.SLOWER, lambda factor: f"× {factor:g}"),
            when=("uneven", ("first", "middle", "last")),
        ),
        Slider(
            name="kept",
            label=say("player.kept"),
            default=1.0,
            group=_TIMES,
            options=scale(cases.KEPT, lambda share: f"{share:.0%}"),
            when=("schedule", cases.SPLIT),
        ),
        Player(
            name="step",
            label=say("player.step"),
            default=0,
            group=_PLAY,
            options=scale(
                range(MOST_MOMENTS + 1),
                lambda step: say("player.moment_number", step=step) if step else say("player.whole"),
            ),
        ),
        Text(
            name="edit",
            label=say("player.edit"),
            group=_PLAY,
            help=say("player.edit_help"),
            check=read_edits,
            suggestions=("0.4<>5", "3.1=F1", "0.3<>4", "3.1<>2, 0.1<>4"),
        ),
    ),
    view=_view,
    adopt_job=cases.adopt,
)
