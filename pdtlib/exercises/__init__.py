"""Graded exercises: ``get(id)`` for one, ``show(id)`` in a notebook, ``check(id, answer)`` to grade.

Exercises on pure computation run unchanged in the browser; those on tensors start torch processes.
"""

from typing import Any

from pdtlib.exercises.catalog import get, ids
from pdtlib.exercises.exercise import Exercise
from pdtlib.exercises.report import Check, Report

__all__ = ["Check", "Exercise", "Report", "check", "get", "ids", "show"]


def show(id: str) -> None:
    """Show the exercise in a notebook; in the book build, leave its place to the page's widget."""
    from pdtlib.exercises.notebook import show

    show(id)


def check(id: str, *answer: Any, seed: int | None = None) -> Report:
    """Grade ``answer``: source text, a path, or the functions and classes that you wrote."""
    from pdtlib.exercises.notebook import check

    return check(id, *answer, seed=seed)
