"""``pdt lint``: a target's verdict on every key of a configuration, without the target installed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.plan.lint import lint_deepspeed


def lint(
    file: Annotated[str, typer.Argument(help="The configuration to judge.")],
    for_: Annotated[str, typer.Option("--for", help="The target that would read it: deepspeed.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Judge FILE key by key: ok, deprecated, ignored, rejected or unknown. Exit code 1 if any is rejected."""
    if for_ != "deepspeed":
        typer.echo(f"--for {for_!r} is not known; valid: deepspeed", err=True)
        raise typer.Exit(2)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        typer.echo(f"cannot read {file}: {error}", err=True)
        raise typer.Exit(2) from None
    verdicts = lint_deepspeed(text)
    if json_:
        typer.echo(json.dumps([asdict(verdict) for verdict in verdicts], ensure_ascii=False))
    else:
        width = max((len(verdict.key) for verdict in verdicts), default=0)
        for verdict in verdicts:
            typer.echo(f"{verdict.key:{width}}  {verdict.verdict:10}  {verdict.message}")
    if any(verdict.verdict == "rejected" for verdict in verdicts):
        raise typer.Exit(1)
