"""``pdt schedule``: build or read a pipeline schedule, prove it legal, simulate it."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.schedule import (
    FAMILIES,
    NAMES,
    Costs,
    Schedule,
    ScheduleError,
    Timeline,
    build,
    check,
    from_csv,
    from_text,
    lower,
    picture,
    simulate,
    to_csv,
    to_text,
    zb_auto,
)
from pdtlib.plan.units import percent_text

_FLAGS = {  # what the library calls the flags
    "forward": "tf",
    "backward_input": "tb",
    "backward_weight": "tw",
    "transfer": "tcomm",
    "pair": "tpair",
    "kept_for_weight": "kept",
}
FORMATS = ("table", "text", "csv", "json")
MOST_FORWARDS = 1_000_000


def schedule(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")] = "",
    stages: Annotated[int, typer.Option(help="Stages of the pipeline.")] = 4,
    microbatches: Annotated[int, typer.Option(help="Micro-batches of a step.")] = 8,
    chunks: Annotated[int | None, typer.Option(help="Chunks of the model a stage (interleaved).")] = None,
    tf: Annotated[str, typer.Option(help="Time of a stage's forward; commas part those of stages.")] = "1",
    tb: Annotated[str, typer.Option(help="Time of its input-gradient backward, likewise.")] = "1",
    tw: Annotated[
        str | None,
        typer.Option(
            help="Time of its weight-gradient backward. If not given: 0 where the schedule doesn't split the "
            "backward (--tb is then the whole of it), else the same as --tb."
        ),
    ] = None,
    tcomm: Annotated[
        float, typer.Option(help="Time from a stage's result to its arrival at the next.")
    ] = 0.0,
    tpair: Annotated[
        float | None, typer.Option(help="Time of a forward and backward that overlap (dualpipe).")
    ] = None,
    memory_cap: Annotated[
        float | None, typer.Option(help="Refuse to hold more activations on a stage; zb-auto fills it.")
    ] = None,
    kept: Annotated[float, typer.Option(help="Share of the activations that a weight gradient needs.")] = 1.0,
    file: Annotated[str, typer.Option(help="Read the table from this file (text, or .csv) instead.")] = "",
    format: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}.")] = "table",
    messages: Annotated[bool, typer.Option(help="Add sends and receives to the actions.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Simulate schedule NAME. Exit code 2 if it can't be built or isn't legal."""
    form = "json" if json_ else format
    try:
        if form not in FORMATS:
            raise BadArgument("format", form, valid=FORMATS)
        if bool(name) == bool(file):
            raise BadArgument("name", name, "give a name or --file, one of the two", NAMES)
        if stages * microbatches * (chunks or 1) > MOST_FORWARDS:
            raise BadArgument(
                "microbatches",
                microbatches,
                f"{stages} stages would run more forwards than are simulated in some seconds",
                (f"stages x micro-batches x chunks of at most {MOST_FORWARDS:,}",),
            )
        table = _read(file) if file else None
        family = FAMILIES.get(name)
        splits = table.splits_backward if table else family is not None and family.splits_backward
        costs = Costs(
            forward=_times("tf", tf),
            backward_input=_times("tb", tb),
            backward_weight=_times("tw", tw if tw is not None else tb if splits else "0"),
            transfer=tcomm,
            pair=tpair,
        )
        if table is None and name == "zb-auto":
            table = zb_auto(stages, microbatches, costs=costs, memory_cap=memory_cap, kept_for_weight=kept)
        elif table is None:
            table = build(name, stages=stages, microbatches=microbatches, chunks=chunks)
        if tpair is not None and not table.overlapped:
            raise BadArgument("pair", tpair, f"no two actions of {table.name} overlap", ("dualpipe",))
        timeline = simulate(table, costs)
        if not math.isfinite(timeline.makespan):
            raise BadArgument("forward", tf, "the times add up to more than a number can be")
        if memory_cap is not None:
            check(table, memory_cap=memory_cap, kept_for_weight=kept)
        elif kept != 1 and name != "zb-auto":
            raise BadArgument("kept_for_weight", kept, "only counts under --memory-cap, or for zb-auto")
    except (ValueError, OSError) as error:
        _refuse(error, as_json=form == "json")
        return
    if form == "json":
        typer.echo(json.dumps(result(timeline, messages=messages), ensure_ascii=False))
    elif form == "table":
        _show(timeline)
    else:
        typer.echo((to_text if form == "text" else to_csv)(table), nl=False)


def result(timeline: Timeline, *, messages: bool = False) -> dict[str, Any]:
    """The JSON of ``pdt schedule``; times in the unit of the costs."""
    table, costs = timeline.schedule, timeline.costs
    programs = lower(table).programs if messages else table.programs
    return {
        "problems": [],
        "name": table.name,
        "stages": table.stages,
        "microbatches": table.microbatches,
        "chunks": table.chunks,
        "layout": table.layout.kind,
        "costs": {
            "tf": costs.forward,
            "tb": costs.backward_input,
            "tw": costs.backward_weight,
            "tcomm": costs.transfer,
            "tpair": costs.pair,
        },
        "actions": [[str(act) for act in program] for program in programs],
        "overlapped": sorted(map(list, table.overlapped)) if not messages else [],
        "makespan": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "bubble_rate": timeline.bubble_rate,
        "peak_in_flight": timeline.peak_in_flight,
    }


def _times(field: str, text: str) -> float | list[float]:
    try:
        times = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadArgument(field, text, "a number, or one for each stage, as in 1,1,2") from None
    return times[0] if len(times) == 1 else times


def _read(path: str) -> Schedule:
    text = Path(path).read_text(encoding="utf-8")
    return from_csv(text) if path.lower().endswith(".csv") else from_text(text)


def _refuse(error: ValueError | OSError, *, as_json: bool) -> None:
    field = _FLAGS.get(getattr(error, "field", ""), getattr(error, "field", ""))
    problem: dict[str, Any] = {
        "field": field,
        "message": str(error),
        "valid": list(getattr(error, "valid", ())),
    }
    if isinstance(error, ScheduleError):
        problem["cell"] = {"stage": error.fault.rank, "index": error.fault.index, "rule": error.fault.rule}
    typer.echo(f"pdt schedule: {error}", err=True)
    if as_json:
        typer.echo(json.dumps({"problems": [problem]}, ensure_ascii=False))
    raise typer.Exit(2)


def _show(timeline: Timeline) -> None:
    import shutil

    table = timeline.schedule
    typer.echo(picture(timeline, columns=shutil.get_terminal_size((120, 24)).columns))
    typer.echo("")
    chunks = f", {table.chunks} chunks each" if table.chunks > 1 else ""
    typer.echo(f"{table.name}: {table.stages} stages{chunks}, {table.microbatches} micro-batches")
    typer.echo(f"makespan         {timeline.makespan:g}")
    typer.echo(f"bubble fraction  {percent_text(timeline.bubble_fraction)} of stages x makespan is idle")
    typer.echo(f"bubble rate      {percent_text(timeline.bubble_rate)} of the longest-occupied stage's time")
    peaks = ", ".join(f"{peak:g}" for peak in timeline.peak_in_flight)
    typer.echo(f"peak in flight   {peaks} micro-batches by stage")
