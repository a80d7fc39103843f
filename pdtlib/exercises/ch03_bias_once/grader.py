"""Grades a row-cut linear layer with a bias against one process, in exact small integers."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pdtlib.exercises.compare import differing, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.simulator import Outcome, run
from pdtlib.exercises.source import ReaderCode, ReaderError
from pdtlib.exercises.sum_comm import SumComm

TOLERANCE = 1e-12
Rows = list[list[float]]


@dataclass(frozen=True)
class Case:
    """Small integers as floats: sums are exact in any order."""

    title: str
    ranks: int
    x: Rows
    weight: Rows
    bias: list[float]
    grad_y: Rows

    def output(self, *, times: int = 1) -> list[float]:
        """x W + ``times`` · bias, token after token in one list."""
        return [
            sum(a * row[j] for a, row in zip(token, self.weight, strict=True)) + times * self.bias[j]
            for token in self.x
            for j in range(len(self.bias))
        ]

    def gradient(self) -> list[float]:
        return [sum(grad[j] for grad in self.grad_y) for j in range(len(self.bias))]

    def part(self, rank: int) -> tuple[Rows, Rows]:
        size = len(self.weight) // self.ranks
        mine = slice(rank * size, (rank + 1) * size)
        return [token[mine] for token in self.x], [list(row) for row in self.weight[mine]]


def _case(rng: random.Random, title: str, ranks: int) -> Case:
    into, out, tokens = ranks * rng.randint(1, 3), rng.randint(2, 4), rng.randint(2, 3)

    def drawn(rows: int, columns: int) -> Rows:
        return [[float(rng.randint(-9, 9)) for _ in range(columns)] for _ in range(rows)]

    bias = [float(rng.choice((-7, -5, 3, 4, 8))) for _ in range(out)]
    grad_y = [[float(rng.randint(1, 9)) for _ in range(out)] for _ in range(tokens)]
    return Case(title, ranks, drawn(tokens, into), drawn(into, out), bias, grad_y)


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """The example of the statement, then hidden sizes."""
    yield from _grade(code, Case("the example", 2, [[2.0, 3.0]], [[10.0], [100.0]], [1.0], [[5.0]]))
    for ranks in (1, 2, 3, 4):
        yield from _grade(code, _case(rng, f"hidden sizes on {ranks} rank{'s' if ranks > 1 else ''}", ranks))


def _grade(code: ReaderCode, case: Case) -> Iterator[Check]:
    try:
        outcome = _run(code, "row_linear", case, lambda rank: (*case.part(rank), list(case.bias)))
    except ReaderError as error:
        yield Check(name=f"{case.title}: row_linear runs", passed=False, message=str(error))
        return
    yield _output(case, outcome)
    yield Check(
        name=f"{case.title}: one all-reduce",
        passed=outcome.all_reduces <= 1,
        expected="at most 1",
        got=str(outcome.all_reduces),
        message="One all-reduce is enough: put the products of all tokens into one list.",
    )
    try:
        outcome = _run(code, "bias_gradient", case, lambda rank: ([list(grad) for grad in case.grad_y],))
    except ReaderError as error:
        yield Check(name=f"{case.title}: bias_gradient runs", passed=False, message=str(error))
        return
    yield _gradient(case, outcome)


def _run(code: ReaderCode, name: str, case: Case, arguments: Callable[[int], tuple[Any, ...]]) -> Outcome:
    return run(
        lambda rank: code.function(name),
        case.ranks,
        lambda rank, fabric: (*arguments(rank), SumComm(rank, fabric)),
    )


def _output(case: Case, outcome: Outcome) -> Check:
    name, width = f"{case.title}: the output", len(case.bias)
    expected = case.output()
    for rank, result in enumerate(outcome.results):
        if not isinstance(result, list | tuple) or not all(isinstance(row, list | tuple) for row in result):
            message = "row_linear must return a list of `out` numbers for every token."
            return Check(name=name, passed=False, got=shown(result), message=message)
        got = [value for row in result for value in row]
        if differing(expected, got, tolerance=TOLERANCE) is None:
            continue
        lesson = "Each rank's product is a part of a sum over the ranks; the bias comes once, after it."
        if differing(case.output(times=case.ranks), got, tolerance=TOLERANCE) is None:
            lesson = (
                f"The bias is in there {case.ranks} times: every rank adds it before the sum. Add it after."
            )
        elif differing(case.output(times=0), got, tolerance=TOLERANCE) is None:
            lesson = "The bias is missing."
        return Check(
            name=name,
            passed=False,
            expected=shown(expected[:width]),
            got=shown(got[:width]),
            message=f"{lesson} (Rank {rank}, first token.)",
        )
    return Check(name=name, passed=True)


def _gradient(case: Case, outcome: Outcome) -> Check:
    name, expected = f"{case.title}: the gradient of the bias", case.gradient()
    for rank, got in enumerate(outcome.results):
        if differing(expected, got, tolerance=TOLERANCE) is None:
            continue
        lesson = "It is the sum over the tokens of the output's gradient."
        for times, text in (
            (
                case.ranks,
                f"This is {case.ranks} times too large: every rank already has the whole gradient, so "
                "an all-reduce counts it once for each rank.",
            ),
            (
                1 / case.ranks,
                "This is a part: each rank would then update its bias by a part of the gradient, "
                "and all ranks hold the same bias.",
            ),
        ):
            if differing([times * value for value in expected], got, tolerance=TOLERANCE) is None:
                lesson = text
        return Check(
            name=name,
            passed=False,
            expected=shown(expected),
            got=shown(got),
            message=f"{lesson} (Rank {rank}.)",
        )
    return Check(name=name, passed=True)
