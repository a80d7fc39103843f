"""Explorer ``schedule-player``: a schedule over time, what each stage holds, and edits of its table."""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, ControlError, Player, Slider, Text, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers.schedule_edits import edited, read_edits
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import layers as strips
from pdtlib.figures import schedule as drawing
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.schedule import (
    FAMILIES,
    NAMES,
    Costs,
    Fault,
    Schedule,
    Timeline,
    build,
    first_fault,
    schedule_problems,
    simulate,
    zb_auto,
)
from pdtlib.plan.spec import SCHEDULES
from pdtlib.plan.units import percent_text

STAGES = (2, 3, 4, 6, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
CHUNKS = (2, 3, 4)
BACKWARDS = (1.0, 1.5, 2.0, 3.0)  # a whole backward, in forwards
TRANSFERS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
UNEVEN = ("none", "first", "middle", "last")
SLOWER = (1.1, 1.25, 1.5, 2.0)
KEPT = (1.0, 0.43, 0.37, 0.0)  # of a micro-batch's activations, until its weights' gradient is computed
SPLIT = tuple(name for name in NAMES if FAMILIES[name].splits_backward)
ARTICLE_LAYERS = 48
ARTICLE = "48-layers"
MODELS = tuple(name for name in sizes.NAMED if presets.model(name).layers >= STAGES[-1] * CHUNKS[-1])
MOST_MOMENTS = 90


@dataclass(frozen=True)
class _Case:
    """What the controls ask for: a table, as edited, and the times of its actions."""

    schedule: Schedule
    costs: Costs
    kept: float


def _costs(values: Values) -> Costs:
    stages, half = values["stages"], values["backward"] / 2
    slow = {"none": None, "first": 0, "middle": stages // 2, "last": stages - 1}[values["uneven"]]
    factors = [values["slower"] if stage == slow else 1.0 for stage in range(stages)]
    return Costs(
        forward=factors,
        backward_input=[half * factor for factor in factors],
        backward_weight=[half * factor for factor in factors],
        transfer=values["transfer"],
    )


def _built(values: Values, costs: Costs) -> Schedule:
    name, stages, microbatches = values["schedule"], values["stages"], values["microbatches"]
    if name == "zb-auto":
        return zb_auto(stages, microbatches, costs=costs, kept_for_weight=values["kept"])
    chunks = values["chunks"] if name == "interleaved" else None
    return build(name, stages=stages, microbatches=microbatches, chunks=chunks)


def _case(values: Values) -> _Case:
    costs = _costs(values)
    schedule = edited(_built(values, costs), values["edit"], control="edit")
    kept = values["kept"] if values["schedule"] in SPLIT else 1.0
    return _Case(schedule, costs, kept)


def _view(values: Values) -> View:
    refused = schedule_problems(
        values["schedule"], stages=values["stages"], microbatches=values["microbatches"]
    )
    if refused:
        raise ControlError(refused[0].field, str(refused[0]))
    case = _case(values)
    fault = first_fault(case.schedule)
    return _illegal(case, fault, values) if fault else _legal(case, values)


def _legal(case: _Case, values: Values) -> View:
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
        figure=drawing.figure(timeline, until=until, kept_for_weight=case.kept, layers=_layers(values)),
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
        legend=(
            *(
                Swatch(name=part.name, label=text, color=part.color, pattern=part.pattern)
                for part, text in drawing.legend(timeline)
            ),
            *(
                Swatch(
                    name=f"held{stage}",
                    label=say("player.held", stage=stage),
                    color=drawing.curve_color(stage),
                    pattern="stroke" if stage < 6 else "line",
                )
                for stage in drawing.curve_stages(case.schedule.stages)
            ),
        ),
        table=_table(timeline, held, values),
        notes=_notes(timeline, case, values),
        job=_job(values),
        limits={"step": len(moments) + 1},
    )


def _illegal(case: _Case, fault: Fault, values: Values) -> View:
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
                    strips.words(schedule.layout, _layers(values), rank),
                    _order(schedule, rank, mark=fault.index if rank == fault.rank else None),
                )
                for rank in range(schedule.stages)
            ),
        ),
        notes=(say("player.note_illegal"),),
        job=_job(values),
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


def _formula(case: _Case, values: Values) -> str:
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


def _notes(timeline: Timeline, case: _Case, values: Values) -> tuple[str, ...]:
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
                strips.words(schedule.layout, _layers(values), rank),
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


def _layers(values: Values) -> int:
    return ARTICLE_LAYERS if values["model"] == ARTICLE else presets.model(values["model"]).layers


def _job(values: Values) -> str:
    name = values["schedule"]
    if values["model"] == ARTICLE or name not in SCHEDULES or values["edit"]:
        return ""
    chunks = {"interleaved": values["chunks"], "zb-v": 2}.get(name, 1)
    return to_toml(
        from_dict(
            {
                "model": {"preset": values["model"]},
                "train": {"global_batch": values["microbatches"]},
                "parallel": {"pp": values["stages"], "vpp": chunks, "schedule": name},
            }
        )
    )


def _adopt(job: Job) -> dict[str, object]:
    known = job.model.name in MODELS and job.model == presets.model(job.model.name)
    return {
        "model": job.model.name if known else ARTICLE,
        "schedule": job.parallel.schedule,
        "stages": sizes.nearest(STAGES, job.parallel.pp),
        "microbatches": sizes.nearest(MICRO_BATCHES, job.gradient_accumulation),
        "chunks": sizes.nearest(CHUNKS, job.parallel.vpp),
    }


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
            options=scale(STAGES),
            job_field="parallel.pp",
        ),
        Slider(
            name="microbatches",
            label=say("player.microbatches"),
            default=8,
            group=_TABLE,
            options=scale(MICRO_BATCHES),
        ),
        Slider(
            name="chunks",
            label=say("player.chunks"),
            default=2,
            group=_TABLE,
            options=scale(CHUNKS),
            when=("schedule", ("interleaved",)),
        ),
        Choice(
            name="model",
            label=say("player.model"),
            default=ARTICLE,
            group=_TABLE,
            options=(
                (ARTICLE, say("player.model_article", layers=ARTICLE_LAYERS)),
                *(
                    (name, say("player.model_named", name=name, layers=presets.model(name).layers))
                    for name in MODELS
                ),
            ),
            job_field="model.preset",
        ),
        Slider(
            name="backward",
            label=say("player.backward"),
            default=2.0,
            group=_TIMES,
            options=scale(BACKWARDS, lambda time: say("player.forwards", count=f"{time:g}")),
        ),
        Slider(
            name="transfer",
            label=say("player.transfer"),
            default=0.0,
            group=_TIMES,
            options=scale(TRANSFERS, lambda time: say("player.forwards", count=f"{time:g}")),
        ),
        Choice(
            name="uneven",
            label=say("player.uneven"),
            default="none",
            group=_TIMES,
            options=tuple((name, say(f"player.uneven_{name}")) for name in UNEVEN),
        ),
        Slider(
            name="slower",
            label=say("player.slower"),
            default=1.5,
            group=_TIMES,
            options=scale(SLOWER, lambda factor: f"× {factor:g}"),
            when=("uneven", ("first", "middle", "last")),
        ),
        Slider(
            name="kept",
            label=say("player.kept"),
            default=1.0,
            group=_TIMES,
            options=scale(KEPT, lambda share: f"{share:.0%}"),
            when=("schedule", SPLIT),
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
    adopt_job=_adopt,
)
