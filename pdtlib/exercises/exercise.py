"""An exercise: its texts, which lie as files beside its grader, and how an answer is graded."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module, resources
from typing import TextIO

from pdtlib.exercises.report import Check, Report
from pdtlib.exercises.source import ReaderCode, ReaderError, captured

SEEDS = 2**32


def draw_seed() -> int:
    """A seed that no program can foresee."""
    return random.SystemRandom().randrange(SEEDS)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise.

    Its package holds ``prompt.md``, ``hints.md`` (three hints of rising strength, separated by a line
    ``---``), ``starter.py``, ``solution.py`` and ``grader.py``, whose ``grade(code, rng)`` yields checks.

    Attributes:
        id: as in ``ch02-zero3``.
        title: without the word "Exercise".
        entry: the function or class that the reader writes.
        runs_in: ``"browser"`` for pure Python, ``"ranks"`` for torch processes on this machine.
        time_limit_s: after which an answer is stopped, in the browser and on the command line.
    """

    id: str
    title: str
    entry: str
    runs_in: str
    time_limit_s: float

    @property
    def chapter(self) -> int:
        return int(self.id[2:4])

    @property
    def package(self) -> str:
        return f"pdtlib.exercises.{self.id.replace('-', '_')}"

    def _read(self, name: str) -> str:
        return resources.files(self.package).joinpath(name).read_text(encoding="utf-8")

    @property
    def prompt(self) -> str:
        """The statement, in Markdown."""
        return self._read("prompt.md")

    @property
    def starter(self) -> str:
        """What the editor holds at first."""
        return self._read("starter.py")

    @property
    def names(self) -> tuple[str, ...]:
        """What the reader writes: the starter's functions and classes, ``entry`` first."""
        written = (ast.FunctionDef, ast.ClassDef)
        found = [node.name for node in ast.parse(self.starter).body if isinstance(node, written)]
        return tuple(sorted(found, key=lambda name: name != self.entry))

    @property
    def call(self) -> str:
        """How an answer in a notebook is graded."""
        return f'exercises.check("{self.id}", {", ".join(self.names)})'

    @property
    def solution(self) -> str:
        return self._read("solution.py")

    @property
    def hints(self) -> tuple[str, ...]:
        """Three hints of rising strength, in Markdown."""
        return tuple(hint.strip() for hint in self._read("hints.md").split("\n---\n"))

    def grade(self, source: str, *, seed: int | None = None, echo: TextIO | None = None) -> Report:
        """Grade the reader's source in this process. The hidden sizes follow from ``seed``.

        What it prints is in the report, and goes to ``echo`` as it comes. An answer that never returns is not
        stopped here: see :func:`pdtlib.exercises.process.grade`.
        """
        seed = draw_seed() if seed is None else seed
        with captured(echo) as output:
            checks = list(self._checks(source, seed))
        return Report(id=self.id, seed=seed, checks=_said_once(checks), output=output.getvalue())

    def _checks(self, source: str, seed: int) -> Iterator[Check]:
        try:
            code = ReaderCode(source)
            code.function(self.entry)
        except ReaderError as error:
            yield Check(name="Your code loads", passed=False, message=str(error))
            return
        grader = import_module(f"{self.package}.grader")
        try:
            yield from grader.grade(code, random.Random(seed))
        except ReaderError as error:
            yield Check(name=f"{self.entry} runs to its end", passed=False, message=str(error))


def _said_once(checks: list[Check]) -> tuple[Check, ...]:
    """A lesson that several checks teach is written at the first of them."""
    seen: set[str] = set()
    found = []
    for check in checks:
        if check.message and check.message in seen:
            check = replace(check, message="As above.")
        seen.add(check.message)
        found.append(check)
    return tuple(found)
