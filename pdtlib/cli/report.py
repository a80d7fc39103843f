"""``pdt report``: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from pdtlib.cli.predict import refuse
from pdtlib.plan.spec import JobError, Problem


def report(
    run: Annotated[Path, typer.Argument(help="A run directory that pdt run has written.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: report.html in RUN.")] = None,
) -> None:
    """Write what RUN measured as one HTML file that needs no network.

    Exit code 2 for a directory without a run.
    """
    from pdtlib.observe.page import page

    target = out or run / "report.html"
    try:
        text = page(run)
        target.write_text(text, encoding="utf-8")
    except ValueError as error:
        refuse(JobError([Problem("", str(error))]), as_json=False)
    except OSError as error:
        refuse(JobError([Problem("--out", f"{target}: {error.strerror}")]), as_json=False)
    typer.echo(str(target))
