"""``pdt compare``: a run's measured values beside the predicted ones."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.cli.predict import refuse
from pdtlib.plan.spec import JobError, Problem


def compare(
    run: Annotated[Path, typer.Argument(help="A run directory that pdt run has written.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare what RUN measured with what its job predicts. Exit code 2 for a directory without a run."""
    from pdtlib.observe.compare import compare as rows_of

    try:
        rows = rows_of(run)
    except ValueError as error:
        refuse(JobError([Problem("", str(error))]), as_json=json_)
    if json_:
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


def _error(error: float | None) -> str:
    if error is None:
        return "–"
    return f"{error:+.2%}" if error else "0"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
