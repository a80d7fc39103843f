"""Explorer ``planner``: the best plans of a model on so many GPUs, and what the other layouts lose on."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, ControlError, Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import planner as drawing
from pdtlib.figures.amounts import gb_words, time_words
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.params import count
from pdtlib.plan.planner import Plan, Ranking, plan
from pdtlib.plan.planner.search import NOT_NEEDED
from pdtlib.plan.states import ZERO
from pdtlib.plan.units import DAY_S, percent_text

MODELS = ("llama3-8b", "llama2-70b", "gpt3-175b")
GPUS = (8, 32, 128, 512)
CLUSTERS = ("dgx-a100", "dgx-h100")
GPU = "A100-SXM4-80"
BATCH = 512
TOP = 6
TOKENS = 1e12
NEAR = 0.05


@lru_cache(maxsize=32)
def _ranking(model: str, gpus: int, cluster: str) -> Ranking:
    job = from_dict(
        {
            "model": {"preset": model},
            "train": {"global_batch": BATCH},
            "hardware": {"cluster": cluster, "n_gpus": gpus},
        }
    )
    return plan(job, num_gpus=gpus, top=TOP)


def _view(values: Values) -> View:
    ranking = _ranking(values["model"], values["gpus"], values["cluster"])
    if not ranking.plans:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in _sorted(ranking))
        raise ControlError("gpus", say("planner.nothing", reasons=reasons))
    index = min(values["rank"], len(ranking.plans)) - 1
    chosen = ranking.plans[index]
    capacity = presets.GPUS[chosen.job.hardware.gpu].memory_bytes
    return View(
        figure=drawing.figure(ranking.plans, chosen=index, capacity_bytes=capacity, control="rank"),
        summary=say(
            "planner.summary" if index else "planner.summary_best",
            rank=index + 1,
            plan=drawing.plan_words(chosen),
            step=time_words(chosen.time.step_s),
            loss=percent_text(_behind(chosen, ranking)),
            memory=gb_words(chosen.memory_bytes),
        ),
        readouts=_readouts(chosen, ranking, capacity),
        legend=tuple(
            Swatch(
                name=part.name,
                label=say(f"planner.part_{part.name}"),
                color=part.color,
                pattern=part.pattern,
                text=time_words(drawing.spent_s(chosen, part)),
                value=drawing.spent_s(chosen, part),
                unit="s",
            )
            for part in drawing.PARTS
        ),
        table=_table(ranking),
        notes=_notes(chosen, ranking),
        job=to_toml(chosen.job),
        limits={"rank": len(ranking.plans)},
    )


def _behind(chosen: Plan, ranking: Ranking) -> float:
    return chosen.time.step_s / ranking.plans[0].time.step_s - 1


def _sorted(ranking: Ranking) -> list[tuple[str, int]]:
    """Why layouts were left out, the most frequent reason first."""
    return sorted(ranking.rejected.items(), key=lambda item: (-item[1], item[0]))


def _readouts(chosen: Plan, ranking: Ranking, capacity: float) -> tuple[Readout, ...]:
    behind = _behind(chosen, ranking)
    best = say("planner.best_note", fitting=f"{ranking.num_fitting:,}")
    seconds = TOKENS / chosen.tokens_per_s
    return (
        Readout(
            name="step",
            label=say("planner.step"),
            text=time_words(chosen.time.step_s),
            value=chosen.time.step_s,
            unit="s",
            note=say("planner.step_note", loss=percent_text(behind)) if behind else best,
        ),
        Readout(
            name="mfu",
            label=say("planner.mfu"),
            text=percent_text(chosen.mfu),
            value=chosen.mfu,
            unit="share",
            note=say("planner.mfu_note", bound=chosen.bound_by),
        ),
        Readout(
            name="memory",
            label=say("planner.memory"),
            text=gb_words(chosen.memory_bytes),
            value=chosen.memory_bytes,
            unit="bytes",
            note=say("planner.memory_note", capacity=gb_words(capacity)),
        ),
        Readout(
            name="fits",
            label=say("planner.fits"),
            text=f"{ranking.num_fitting:,}",
            value=ranking.num_fitting,
            unit="count",
            note=say("planner.fits_note", needless=f"{ranking.rejected.get(NOT_NEEDED, 0):,}"),
        ),
        Readout(
            name="days",
            label=say("planner.days"),
            text=f"{seconds / DAY_S:,.0f}",
            value=seconds / DAY_S,
            unit="days",
            note=say("planner.days_note", hours=f"{chosen.gpu_hours(TOKENS):,.0f}"),
        ),
    )


def _table(ranking: Ranking) -> Table:
    losses = [say("planner.the_best"), *ranking.losses()]
    plans = (
        (
            drawing.plan_words(found),
            time_words(found.time.step_s),
            gb_words(found.memory_bytes),
            percent_text(found.mfu),
            loss,
        )
        for found, loss in zip(ranking.plans, losses, strict=True)
    )
    out = (
        (say("planner.rejected_row", count=f"{count:,}"), "", "", "", reason)
        for reason, count in _sorted(ranking)
    )
    return Table(
        caption=say("planner.table"),
        columns=tuple(say(f"planner.column_{name}") for name in ("plan", "step", "memory", "mfu", "why")),
        rows=(*plans, *out),
    )


def _notes(chosen: Plan, ranking: Ranking) -> tuple[str, ...]:
    shown = len(ranking.plans)
    close = sum(_behind(found, ranking) <= NEAR for found in ranking.plans)
    near = say("planner.note_close_all" if close == shown else "planner.note_close", close=close, shown=shown)
    notes = [say("planner.note_model"), near, say("planner.note_families")]
    if chosen.job.parallel.pp > 1:
        notes.insert(0, say("planner.note_pipeline"))
    return tuple(notes)


def _adopt(job: Job) -> dict[str, Any]:
    """The model nearest in size, on as many GPUs as the job has, or at least its states need."""
    params = {name: count(presets.model(name)).total for name in MODELS}
    wanted = count(job.model).total
    model = min(params, key=lambda name: (abs(math.log(params[name] / wanted)), name))
    least = ZERO.total * params[model] / presets.GPUS[GPU].memory_bytes
    enough = tuple(gpus for gpus in GPUS if gpus > least)
    state: dict[str, Any] = {"model": model, "gpus": sizes.nearest(enough, job.hardware.n_gpus)}
    for cluster in CLUSTERS:
        if presets.CLUSTERS[cluster]["gpu"] == job.hardware.gpu:
            state["cluster"] = cluster
    return state


_CONTROLS = ("rank", "model", "gpus", "cluster")
_RUN = say("planner.group_run")

EXPLORER = Explorer(
    id="planner",
    title=say("planner.title"),
    lead=say("planner.lead"),
    controls=(
        Slider(
            name="rank",
            label=say("planner.rank"),
            default=1,
            group=say("planner.group_plan"),
            options=scale(range(1, TOP + 1), lambda rank: say("planner.rank_text", rank=rank)),
        ),
        Choice(
            name="model",
            label=say("planner.model"),
            default="llama2-70b",
            group=_RUN,
            options=tuple((name, sizes.named_text(name)) for name in MODELS),
        ),
        Slider(name="gpus", label=say("planner.gpus"), default=128, group=_RUN, options=scale(GPUS)),
        Choice(
            name="cluster",
            label=say("planner.cluster"),
            default="dgx-a100",
            group=_RUN,
            options=tuple((name, name) for name in CLUSTERS),
        ),
    ),
    view=_view,
    adopt_job=_adopt,
    # A ranking takes a browser seconds, so all of them are worked out when the page is built.
    together=tuple(group for size in (2, 3, 4) for group in combinations(_CONTROLS, size)),
)
