"""``pdt grade``: grade a file with an exercise's grader."""

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def grade(
    id: Annotated[str, typer.Argument(help="The exercise, as in ch02-zero3.")] = "",
    file: Annotated[str, typer.Argument(help="Your answer, a Python file; - reads stdin.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the exercises.")] = False,
    starter: Annotated[bool, typer.Option("--starter", help="Print the exercise's starter.")] = False,
    seed: Annotated[int | None, typer.Option(help="Draw the hidden sizes of this seed again.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Stop the answer after so many seconds.")] = None,
) -> None:
    """Grade FILE: exit code 0 when every check passes, 1 when one fails, 2 for a wrong call."""
    from pdtlib.exercises import get, process

    if list_:
        _list(as_json=json_)
        return
    if not id:
        _refuse("no exercise given; `pdt grade --list` shows them")
    try:
        exercise = get(id)
    except ValueError as error:
        _refuse(str(error))
    if starter:
        typer.echo(exercise.starter, nl=False)
        return
    report = process.grade(exercise, _source(file), seed=seed, time_limit_s=time_limit)
    typer.echo(json.dumps(report.to_dict(), ensure_ascii=False) if json_ else report.text())
    raise typer.Exit(0 if report.passed else 1)


def _source(file: str) -> str:
    if not file:
        _refuse("no file given; write your answer to a file, or pass - and write it to stdin")
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _refuse(f"{file} cannot be read: {error}")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"pdt grade: {message}", err=True)
    raise typer.Exit(2)


def _list(*, as_json: bool) -> None:
    from pdtlib.exercises import get, ids

    rows = [
        {"id": id, "title": get(id).title, "entry": get(id).entry, "runs_in": get(id).runs_in} for id in ids()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    width = max(len(row["id"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['id']:<{width}}  {row['title']} ({row['entry']}, {row['runs_in']})")
