"""``pdt lint``: a target's verdict on every key of a configuration, without the target installed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.cli.predict import as_job_error, refuse
from pdtlib.plan.lint import lint_deepspeed
from pdtlib.plan.spec import JobError, Problem


def lint(
    file: Annotated[str, typer.Argument(help="The configuration to judge.")],
    for_: Annotated[str, typer.Option("--for", help="The target that would read it: deepspeed.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Judge FILE key by key: ok, deprecated, ignored, rejected or unknown. Exit code 1 if any is rejected."""
    if for_ != "deepspeed":
        refuse(JobError([Problem("--for", f"{for_!r} is not known", ("deepspeed",))]), as_json=json_)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 text ({error.reason} at byte {error.start})"
        refuse(JobError([Problem("", message)]), as_json=json_)
    except OSError as error:
        refuse(as_job_error(error, file), as_json=json_)
    verdicts = lint_deepspeed(text)
    if json_:
        typer.echo(json.dumps([asdict(verdict) for verdict in verdicts], ensure_ascii=False))
    else:
        width = max((len(verdict.key) for verdict in verdicts), default=0)
        for verdict in verdicts:
            typer.echo(f"{verdict.key:{width}}  {verdict.verdict:10}  {verdict.message}")
    if any(verdict.verdict == "rejected" for verdict in verdicts):
        raise typer.Exit(1)
