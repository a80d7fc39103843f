"""``pdt plan``: the best layouts of a job on so many GPUs, and why others lost."""

import json
import math
from typing import Annotated, Any

import typer

from pdtlib.cli.predict import as_job_error, known_software, refuse
from pdtlib.plan.hardware_file import peak_flops
from pdtlib.plan.job import load, to_dict
from pdtlib.plan.planner import Plan, Ranking
from pdtlib.plan.planner import plan as best_plans
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import Job, JobError, Problem
from pdtlib.plan.units import bytes_text, percent_text, time_text


def plan(
    job: Annotated[str, typer.Argument(help="The job; of it the model, the batch and the hardware count.")],
    gpus: Annotated[
        int | None, typer.Option(help="GPUs to plan for; the job's own number by default.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many plans to show.")] = 5,
    software: Annotated[str, typer.Option(help="The training stack whose times are predicted.")] = "",
    tokens: Annotated[float, typer.Option(help="Tokens to train on, for GPU-hours and cost.")] = 0.0,
    price: Annotated[float, typer.Option(help="Price of a GPU-hour.")] = 0.0,
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
    if wrong:
        refuse(JobError(wrong), as_json=json_)
    try:
        chosen = _readable(job)
        ranking = best_plans(chosen, num_gpus=gpus, top=top, software=stack)
    except (JobError, OSError) as error:
        refuse(as_job_error(error, job), as_json=json_)
    if json_:
        typer.echo(json.dumps(_rows(ranking, stack, tokens, price), ensure_ascii=False))
    else:
        _show(ranking, tokens, price)
    if not ranking.plans:
        raise typer.Exit(1)


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
            *map(str, (*degrees, train.micro_batch, train.zero_stage)),
            train.recompute,
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
