"""``pdt compare``: a run's measured values beside the predicted ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.cli.predict import refuse
from pdtlib.plan.spec import JobError, Problem
from pdtlib.plan.units import percent_text


def compare(
    run: Annotated[Path, typer.Argument(help="A run directory that pdt run has written.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare what RUN measured with what its job predicts, and name what its steps lose time to.

    Exit code 2 for a directory without a run.
    """
    from pdtlib.observe.compare import compare as rows_of
    from pdtlib.observe.diagnosis import diagnose

    try:
        rows = rows_of(run)
        causes = diagnose(run)
    except ValueError as error:
        refuse(JobError([Problem("", str(error))]), as_json=json_)
    if json_:
        for row in rows:
            if row["quantity"] == "time.step_s":
                row["causes"] = [asdict(cause) for cause in causes]
        typer.echo(json.dumps(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "quantity", box=box.SIMPLE, title=f"{run}: bytes, calls and seconds of a rank", title_justify="left"
    )
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["quantity"], _number(row["predicted"]), _number(row["measured"]), _error(row["error"])
        )
    Console().print(table)
    for cause in causes:
        typer.echo(f"{cause.cause}, {percent_text(cause.cost)} of a step: {cause.evidence}")
        typer.echo(f"  -> {cause.fix}")


def _error(error: float | None) -> str:
    if error is None:
        return "–"
    return f"{error:+.2%}" if error else "0"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
