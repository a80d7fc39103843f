"""``pdt plan``: the best layouts of a job on so many GPUs, and why others lost."""

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pdtlib.cli.predict import as_job_error, known_software, refuse
from pdtlib.figures.scaling import rows
from pdtlib.plan.hardware_file import peak_flops
from pdtlib.plan.job import load, to_dict
from pdtlib.plan.planner import Plan, Point, Ranking, sizes_for
from pdtlib.plan.planner import plan as best_plans
from pdtlib.plan.planner import scaling as best_by_size
from pdtlib.plan.planner.candidates import USUAL_SCHEDULES
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import SCHEDULES, Job, JobError, Problem
from pdtlib.plan.units import bytes_text, percent_text, time_text

SCALINGS = ("strong", "weak")


def plan(
    job: Annotated[str, typer.Argument(help="The job; of it the model, the batch and the hardware count.")],
    gpus: Annotated[
        int | None, typer.Option(help="GPUs to plan for; the job's own number by default.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many plans to show.")] = 5,
    software: Annotated[str, typer.Option(help="The training stack whose times are predicted.")] = "",
    tokens: Annotated[float, typer.Option(help="Tokens to train on, for GPU-hours and cost.")] = 0.0,
    price: Annotated[float, typer.Option(help="Price of a GPU-hour.")] = 0.0,
    schedules: Annotated[
        str, typer.Option(help=f"Pipelines to look at, with commas, or all: {', '.join(SCHEDULES)}.")
    ] = ",".join(USUAL_SCHEDULES),
    scaling: Annotated[
        str, typer.Option(help="The best plan by number of GPUs: strong (one batch) or weak (it grows).")
    ] = "",
    sizes: Annotated[str, typer.Option(help="Numbers of GPUs for --scaling, as in 8,64,512.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Rank the layouts of JOB by predicted time. Exit code 1 if none fits, 2 for a job that cannot work."""
    stack = known_software(software, as_json=json_)
    wrong = [
        Problem(name, f"must be finite and at least 0, not {value:g}")
        for name, value in (("--tokens", tokens), ("--price", price))
        if not 0 <= value < math.inf
    ]
    wrong += [
        Problem(name, f"must be at least 1, not {value}")
        for name, value in (("--gpus", gpus), ("--top", top))
        if value is not None and value < 1
    ]
    pipelines = SCHEDULES if schedules == "all" else tuple(part.strip() for part in schedules.split(","))
    if not set(pipelines) <= set(SCHEDULES):
        wrong.append(Problem("--schedules", f"{schedules!r} names an unknown one", ("all", *SCHEDULES)))
    numbers = [int(part) for part in sizes.split(",") if part.strip().isdecimal() and int(part) > 0]
    if scaling not in ("", *SCALINGS):
        wrong.append(Problem("--scaling", f"{scaling!r} is not known", SCALINGS))
    if sizes and len(numbers) < len(sizes.split(",")):
        wrong.append(Problem("--sizes", f"must be numbers of GPUs with commas between them, not {sizes!r}"))
    if sizes and not scaling:
        wrong.append(Problem("--sizes", "only counts with --scaling", SCALINGS))
    if wrong:
        refuse(JobError(wrong), as_json=json_)
    if scaling:
        _scale(job, scaling, numbers, stack, tokens, price, as_json=json_)
        return
    try:
        chosen = _readable(job)
        ranking = best_plans(chosen, num_gpus=gpus, top=top, software=stack, schedules=pipelines)
    except (JobError, OSError) as error:
        refuse(as_job_error(error, job), as_json=json_)
    if json_:
        typer.echo(json.dumps(_rows(ranking, stack, tokens, price), ensure_ascii=False))
    else:
        _show(ranking, tokens, price)
    if not ranking.plans:
        raise typer.Exit(1)


def _scale(
    path: str, kind: str, sizes: list[int], stack: str, tokens: float, price: float, *, as_json: bool
) -> None:
    """The best plan on every number of GPUs; exit code 1 if none has one."""
    try:
        job = _readable(path)
    except (JobError, OSError) as error:
        refuse(as_job_error(error, path), as_json=as_json)
    points = best_by_size(job, sizes or sizes_for(job), weak=kind == "weak", software=stack)
    if as_json:
        rows = [_point_row(point, tokens, price) for point in points]
        typer.echo(json.dumps({"problems": [], "scaling": kind, "points": rows}, ensure_ascii=False))
    else:
        _show_scaling(points, kind, tokens, price)
    if not any(point.plan for point in points):
        raise typer.Exit(1)


def _point_row(point: Point, tokens: float, price: float) -> dict[str, Any]:
    row: dict[str, Any] = {"gpus": point.gpus, "job": None}
    if point.plan is not None:
        row |= {
            "job": to_dict(point.plan.job),
            "step_s": point.plan.time.step_s,
            "tokens_per_s": point.plan.tokens_per_s,
            "mfu": point.plan.mfu,
            "efficiency": point.efficiency,
            "memory_bytes": point.plan.memory_bytes,
            "bound_by": point.plan.bound_by,
            **_cost(point.plan, tokens, price),
        }
    return row


def _show_scaling(points: Sequence[Point], kind: str, tokens: float, price: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = {"strong": "Strong scaling: the batch stays", "weak": "Weak scaling: the batch grows"}[kind]
    costs = [*(["GPU-hours"] if tokens else []), *(["cost"] if tokens and price else [])]
    columns = ("GPUs", "batch", "layout", "step", "tokens/s", "MFU", "efficiency", *costs)
    table = Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for point, texts in zip(points, rows(points), strict=True):
        gpus, degrees, rate, mfu, efficiency = texts
        batch = step = ""
        cost: dict[str, float] = {}
        if point.plan is not None:
            batch, step = f"{point.plan.job.train.global_batch:,}", time_text(point.plan.time.step_s)
            cost = _cost(point.plan, tokens, price)
        table.add_row(
            gpus, batch, degrees, step, rate, mfu, efficiency, *(f"{value:,.0f}" for value in cost.values())
        )
    Console().print(table)


def _readable(path: str) -> Job:
    """The job; hardware without published or measured rates is one of its problems here."""
    found = load(path)
    if peak_flops(found) is None:
        message = "planning needs rates: name a GPU or a cluster, or measure this machine with pdt calibrate"
        raise JobError([Problem("hardware.gpu", message)])
    return found


def _rows(ranking: Ranking, stack: str, tokens: float, price: float) -> dict[str, Any]:
    losses = ["", *ranking.losses()]
    return {
        "problems": [],
        "candidates": [
            {
                "job": to_dict(plan.job),
                "prediction": predict(plan.job, software=stack),
                "memory_bytes": plan.memory_bytes,
                "bound_by": plan.bound_by,
                "loses_to_best": loss,
                **_cost(plan, tokens, price),
            }
            for plan, loss in zip(ranking.plans, losses, strict=False)
        ],
        "num_fitting": ranking.num_fitting,
        "rejected": ranking.rejected,
    }


def _cost(plan: Plan, tokens: float, price: float) -> dict[str, float]:
    if not tokens:
        return {}
    hours = plan.gpu_hours(tokens)
    return {"gpu_hours": hours, **({"cost": hours * price} if price else {})}


def _show(ranking: Ranking, tokens: float, price: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = (
        "dp",
        "tp",
        "pp",
        "cp",
        "ep",
        "vpp",
        "schedule",
        "mb",
        "ZeRO",
        "recompute",
        "step",
        "MFU",
        "memory",
        "bound by",
    )
    table = Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for plan in ranking.plans:
        parallel, train = plan.job.parallel, plan.job.train
        degrees = (parallel.dp, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.vpp)
        table.add_row(
            *map(str, degrees),
            parallel.schedule if parallel.pp > 1 else "",
            *map(str, (train.micro_batch, train.zero_stage)),
            train.recompute + (f" ({train.recompute_layers})" if train.recompute_layers else ""),
            time_text(plan.time.step_s),
            percent_text(plan.mfu),
            bytes_text(plan.memory_bytes),
            plan.bound_by,
        )
    if ranking.plans:
        console.print(table)
        for number, loss in enumerate(ranking.losses(), start=2):
            console.print(f"plan {number}: {loss} than plan 1")
        for name, value in _cost(ranking.plans[0], tokens, price).items():
            console.print(f"plan 1: {name.replace('_', '-')} {value:,.0f}")
    else:
        console.print("No layout fits.")
    console.print(f"\n{ranking.num_fitting} layouts fit. The others fell out:")
    for reason, count in sorted(ranking.rejected.items(), key=lambda item: -item[1]):
        console.print(f"  {count:6}  {reason}")
