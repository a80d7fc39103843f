"""``pdt assign``: labs and exercises for a class, handed out, graded and collected."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
Assignment = Annotated[Path, typer.Argument(help="The folder that `pdt assign make` has written.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int | None, typer.Option(help="Draws the hidden sizes; the same for all students.")]
Limit = Annotated[float | None, typer.Option(help="Stop each answer after so many seconds.")]


@contextmanager
def told() -> Iterator[None]:
    """A wrong call in one line, exit code 2."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"pdt assign: {error}", err=True)
        raise typer.Exit(2) from None


@app.callback()
def assign() -> None:
    """Labs and exercises for a class: hand them out, grade them, collect the results."""


@app.command()
def make(
    names: Annotated[list[str], typer.Argument(help="Chapters (02), labs (lab-02), exercises (ch02-zero3).")],
    out: Annotated[Path, typer.Option(help="The folder to write, empty or new.")],
    solutions: Annotated[bool, typer.Option("--solutions", help="Add the solutions.")] = False,
) -> None:
    """Write an assignment: a starter for every task, a README, and the list of tasks."""
    from pdtlib.book.assign import hand_out

    with told():
        for task in hand_out(names, out, with_solutions=solutions):
            typer.echo(f"{out / task.file}  {task.title}")


@app.command()
def check(
    task: Annotated[str, typer.Argument(help="A lab (lab-02) or an exercise (ch02-zero3).")],
    file: Annotated[Path, typer.Argument(help="Your answer.")],
    seed: Seed = None,
    limit: Limit = None,
    json_: Json = False,
) -> None:
    """Grade one file: exit code 0 when it gets every point, 1 when not."""
    from pdtlib.book.assign.grading import grade_file
    from pdtlib.book.assign.handout import tasks

    with told():
        graded = grade_file(tasks([task])[0], file, seed=_drawn(seed), limit_s=limit)
    if json_:
        typer.echo(json.dumps(graded.to_dict(), ensure_ascii=False))
    else:
        typer.echo(f"{graded.id}: {graded.score:.0%}{f'; {graded.reason}' if graded.reason else ''}")
    raise typer.Exit(0 if graded.score == 1 else 1)


@app.command()
def grade(
    assignment: Assignment,
    submissions: Annotated[Path, typer.Argument(help="A folder with a folder for each student.")],
    out: Annotated[Path, typer.Option(help="Where a JSON file for each student goes.")],
    seed: Seed = None,
    limit: Limit = None,
    share: Annotated[str, typer.Option(help="Grade only part I of N, as in 0/4.")] = "0/1",
) -> None:
    """Grade all submissions; a bad one gets zero and a reason, and the next one its turn."""
    from pdtlib.book.assign import grade_folder, read_assignment, students

    drawn = _drawn(seed)
    with told():
        tasks, names = read_assignment(assignment), students(submissions)
        part, parts = _share(share)
        out.mkdir(parents=True, exist_ok=True)
    for name in names[part::parts]:
        found = grade_folder(submissions / name, tasks, seed=drawn, limit_s=limit)
        text = json.dumps(found, ensure_ascii=False, indent=1)
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        typer.echo(f"{name}: {found['score']:.2f} of {found['points']:g}")


@app.command()
def collect(
    results: Annotated[Path, typer.Argument(help="The folder that `pdt assign grade` has written.")],
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    json_: Json = False,
) -> None:
    """All results as one table, as CSV or JSON."""
    from pdtlib.book.assign import collect as rows_of
    from pdtlib.book.assign import to_csv

    with told():
        rows = rows_of(results)
    text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n" if json_ else to_csv(rows)
    if csv is None:
        typer.echo(text, nl=False)
    else:
        csv.write_text(text, encoding="utf-8")


def _drawn(seed: int | None) -> int:
    return random.SystemRandom().randrange(2**32) if seed is None else seed


def _share(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise ValueError(f"share={text!r}; valid: I/N with I from 0 to N - 1, as in 0/4")
    return int(part), int(parts)
