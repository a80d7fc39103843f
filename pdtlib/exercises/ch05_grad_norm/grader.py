"""Grades a global gradient norm: sharded squares summed, replicated ones and tied copies counted once."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pdtlib.exercises.compare import close, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.simulator import Outcome, run
from pdtlib.exercises.source import ReaderCode, ReaderError
from pdtlib.exercises.sum_comm import SumComm

TOLERANCE = 1e-12
Parameter = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``ranks[r]`` are the parameters of rank r = stage x tp + tp_rank."""

    title: str
    tp: int
    ranks: tuple[tuple[Parameter, ...], ...]
    max_norm: float

    def squares(self, *, whole_once: bool = True, copies: bool = False, whole: bool = True) -> float:
        total = 0.0
        for rank, parameters in enumerate(self.ranks):
            for parameter in parameters:
                first = rank % self.tp == 0 or not whole_once
                counts = parameter["cut"] or (first and whole)
                if counts and (copies or not parameter["tied_copy"]):
                    total += math.fsum(value * value for value in parameter["grad"])
        return total


def _parameter(values: list[float], *, cut: bool, tied_copy: bool = False) -> Parameter:
    return {"grad": values, "cut": cut, "tied_copy": tied_copy}


def _model(rng: random.Random, tp: int, stages: int, *, tied: bool) -> tuple[tuple[Parameter, ...], ...]:
    def numbers(count: int) -> list[float]:
        return [rng.uniform(-2, 2) for _ in range(count)]

    embedding = [numbers(6) for _ in range(tp)]
    ranks = []
    for stage in range(stages):
        whole = [numbers(rng.randint(1, 4)) for _ in range(2)]
        for rank in range(tp):
            parameters = [_parameter(list(values), cut=False) for values in whole]
            parameters.append(_parameter(numbers(rng.randint(3, 8)), cut=True))
            if tied and stage in (0, stages - 1):
                copy = stage == stages - 1 and stages > 1
                parameters.append(_parameter(list(embedding[rank]), cut=True, tied_copy=copy))
            rng.shuffle(parameters)
            ranks.append(tuple(parameters))
    return tuple(ranks)


def cases(rng: random.Random) -> list[Case]:
    """The example, then hidden models with and without a pipeline, tied embeddings, no clipping, zeros."""
    example = tuple((_parameter([part], cut=True), _parameter([12.0], cut=False)) for part in (3.0, 4.0))
    zeros = tuple((_parameter([0.0, 0.0], cut=True), _parameter([0.0], cut=False)) for _ in range(2))
    return [
        Case("the example", 2, example, 1.0),
        Case("4 tensor-parallel ranks", 4, _model(rng, 4, 1, tied=False), 1.0),
        Case("2 x 3 stages", 2, _model(rng, 2, 3, tied=False), 0.5),
        Case("2 x 4 stages, tied embeddings", 2, _model(rng, 2, 4, tied=True), 1.0),
        Case("4 stages, tied embeddings, no tensor parallelism", 1, _model(rng, 1, 4, tied=True), 1.0),
        Case("a small gradient is not clipped", 2, _model(rng, 2, 1, tied=False), 1e6),
        Case("a gradient of zeros", 2, zeros, 1.0),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: the norm and the coefficient on every rank; the number and size of all-reduces."""
    for case in cases(rng):

        def arguments(rank, fabric, case=case):
            own = [dict(parameter) for parameter in case.ranks[rank]]
            return own, rank % case.tp, SumComm(rank, fabric), case.max_norm

        try:
            outcome = run(lambda rank: code.function("grad_norm"), len(case.ranks), arguments)
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=_explain(error))
            continue
        yield from _values(case, outcome)
        yield Check(
            name=f"{case.title}: one all-reduce of one number",
            passed=outcome.all_reduces == 1 and all(len(sent) <= 1 for sent in outcome.sent),
            expected="1",
            got=str(outcome.all_reduces),
            message="Sum this rank's squares first, then all-reduce that one number.",
        )


def _explain(error: ReaderError) -> str:
    text = str(error)
    return (
        f"{text}\nA gradient may be all zeros: then nothing is clipped." if "ZeroDivision" in text else text
    )


def _values(case: Case, outcome: Outcome) -> Iterator[Check]:
    norm = math.sqrt(case.squares())
    coefficient = min(1.0, case.max_norm / norm) if norm else 1.0
    pairs = []
    for rank, got in enumerate(outcome.results):
        if not isinstance(got, list | tuple) or len(got) != 2:
            message = "Return two numbers: the norm and the coefficient."
            yield Check(
                name=f"{case.title}: norm", passed=False, got=f"rank {rank}: {got!r}"[:80], message=message
            )
            return
        pairs.append(tuple(got))
    for place, (what, expected) in enumerate((("norm", norm), ("coefficient", coefficient))):
        wrong = [pair[place] for pair in pairs if not close(expected, pair[place], tolerance=TOLERANCE)]
        yield Check(
            name=f"{case.title}: {what}",
            passed=not wrong,
            expected=shown(expected),
            got=shown(wrong[0]) if wrong else "",
            message=_wrong_norm(case, wrong[0]) if place == 0 and wrong else _wrong_coefficient(wrong),
        )


def _wrong_norm(case: Case, got: Any) -> str:
    readings = (
        (
            case.squares(whole_once=False, copies=False),
            "Whole parameters are counted on every tensor-parallel rank. All have the same gradient: count "
            "it once.",
        ),
        (
            case.squares(copies=True),
            "The tied copy is counted. The first stage counts this gradient already.",
        ),
        (
            case.squares(whole_once=False, copies=True),
            "Whole parameters and the tied copy are counted more than once. Who is responsible for each?",
        ),
        (
            case.squares(whole=False),
            "Whole parameters are missing: one of the tensor-parallel ranks must count them.",
        ),
        (case.squares() ** 2, "This is the sum of squares: take the root at the end."),
    )
    for squares, lesson in readings:
        if close(math.sqrt(squares), got, tolerance=1e-9):
            return lesson
    return "Squares add, norms don't: sum squares over the ranks, and take the root last."


def _wrong_coefficient(wrong: list[Any]) -> str:
    if wrong and type(wrong[0]) is float and wrong[0] > 1:
        return "Clipping never makes a gradient longer: the coefficient is at most 1."
    return "The coefficient is max_norm / norm, at most 1."
