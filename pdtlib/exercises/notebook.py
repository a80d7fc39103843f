"""Exercises in a notebook: shown as Markdown in Jupyter, as the page's widget in the book build."""

import os
from typing import Any

from pdtlib.exercises import process
from pdtlib.exercises.answer import source_of
from pdtlib.exercises.catalog import get
from pdtlib.exercises.exercise import Exercise
from pdtlib.exercises.report import Report

MIME = "application/vnd.pdtlib.exercise+json"


def show(id: str) -> None:
    """Show statement, starter, hints and solution; in the book build (PDTLIB_BOOK=1) hand over to the page.

    Raises:
        ValueError: no such exercise.
    """
    from IPython.display import Markdown, display

    exercise = get(id)
    if os.environ.get("PDTLIB_BOOK") == "1":
        display({MIME: {"id": id}, "text/plain": f"Exercise {id}: {exercise.title}"}, raw=True)
    else:
        display(Markdown(markdown(exercise)))


def markdown(exercise: Exercise) -> str:
    """The exercise as one Markdown text, hints and solution folded."""
    folded = [(f"Hint {number}", hint) for number, hint in enumerate(exercise.hints, 1)]
    folded.append(("Solution", f"```python\n{exercise.solution}```"))
    return "\n\n".join(
        [
            f"### Exercise: {exercise.title}",
            exercise.prompt,
            f"Start from this in a new cell:\n\n```python\n{exercise.starter}```",
            f"Run it, then grade it:\n\n```python\nfrom pdtlib import exercises\n\n{exercise.call}\n```",
            *(f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in folded),
        ]
    )


def check(id: str, *answer: Any, seed: int | None = None) -> Report:
    """Grade source text, a ``.py`` path, or functions and classes, in a process with a time limit.

    Raises:
        ValueError: no such exercise, or no source to be found.
    """
    return process.grade(get(id), source_of(*answer), seed=seed)
