"""``pdt dryrun``: what one rank of a job holds and sends, from the engine itself on fake tensors."""

import importlib.util
import json
from typing import Annotated, Any

import typer

from pdtlib.cli.predict import as_job_error, refuse
from pdtlib.plan.job import load
from pdtlib.plan.spec import JobError, Problem
from pdtlib.plan.units import bytes_text, percent_text


def dryrun(
    job: Annotated[str, typer.Argument(help="The job: a TOML file, or JSON if its name ends so.")],
    rank: Annotated[int, typer.Option(help="The rank to build, of all that the job has.")] = 0,
    rank_order: Annotated[
        str, typer.Option(help="Which axes' ranks are neighbours, as in pdt run: article or megatron.")
    ] = "article",
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Build one rank of JOB on fake tensors and run a step: no GPU and next to no memory is needed.

    Exit code 2 with every problem on stderr if the job cannot work or has no such rank.
    """
    if importlib.util.find_spec("torch") is None:
        typer.echo(
            "pdt dryrun: the engine needs PyTorch; install it with: pip install 'pdtlib[engine]'", err=True
        )
        raise typer.Exit(2)
    from pdtlib.engine.dry_run import dry_run
    from pdtlib.engine.training.options import RANK_ORDERS

    try:
        if rank_order not in RANK_ORDERS:
            message = f"{rank_order!r} is not one of its values"
            raise JobError([Problem("--rank-order", message, tuple(RANK_ORDERS))])
        result = dry_run(load(job), rank=rank, order=RANK_ORDERS[rank_order])
    except (JobError, OSError) as error:
        refuse(as_job_error(error, job), as_json=json_)
    except ValueError as error:
        refuse(JobError([Problem("--rank", str(error))]), as_json=json_)
    if json_:
        typer.echo(json.dumps({"problems": [], **result}))
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    place = ", ".join(f"{axis} {index}" for axis, index in result["place"].items())
    typer.echo(f"rank {result['rank']} of {result['world_size']} ({place})\n")
    typer.echo(f"  {'held':<12}{'engine':>12}{'plan':>12}")
    for name, size in result["memory"].items():
        planned = result["planned"][name]
        off = "" if size == planned else f"  {percent_text(size / planned - 1)} of the plan's"
        typer.echo(f"  {name:<12}{bytes_text(size):>12}{bytes_text(planned):>12}  {size:,} bytes{off}")
    typer.echo(f"\n  {'axis':<5}{'phase':<11}{'collective':<16}{'calls':>7}{'message':>12}{'sent':>12}")
    for row in result["comm"]:
        size, sent = bytes_text(row["message_bytes"]), bytes_text(row["sent_bytes_per_rank"])
        call = f"{row['axis']:<5}{row['phase']:<11}{row['collective']:<16}"
        typer.echo(f"  {call}{row['count']:>7}{size:>12}{sent:>12}")
