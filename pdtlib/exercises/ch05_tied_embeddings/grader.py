"""Grades the gradient of tied embeddings over two stages and d replicas, in shards."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdtlib.exercises.axis_comm import AxisComm
from pdtlib.exercises.compare import differing, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.simulator import run
from pdtlib.exercises.source import ReaderCode, ReaderError

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    """``grads[stage][replica]``; ranks count replicas first."""

    title: str
    grads: tuple[tuple[tuple[float, ...], ...], ...]

    @property
    def dp(self) -> int:
        return len(self.grads[0])

    @property
    def length(self) -> int:
        return len(self.grads[0][0])

    def groups(self, rank: int) -> dict[str, list[int]]:
        stage, replica = divmod(rank, self.dp)
        return {
            "dp": [stage * self.dp + other for other in range(self.dp)],
            "pp": [replica, self.dp + replica],
        }

    def summed(self, stages: Sequence[int]) -> list[float]:
        """The sum over replicas of these stages' gradients."""
        chosen = [grad for stage in stages for grad in self.grads[stage]]
        return [sum(column) for column in zip(*chosen, strict=True)]

    def piece(self, values: Sequence[float], rank: int) -> list[float]:
        size = self.length // self.dp
        replica = rank % self.dp
        return list(values[replica * size : (replica + 1) * size])


def cases(rng: random.Random) -> list[Case]:
    """The example; one replica; several with whole numbers; fractions."""

    def grads(dp: int, length: int, *, whole: bool) -> tuple[tuple[tuple[float, ...], ...], ...]:
        def number() -> float:
            return float(rng.randint(-99, 99)) if whole else rng.uniform(-1, 1)

        return tuple(tuple(tuple(number() for _ in range(length)) for _ in range(dp)) for _ in range(2))

    example = tuple(tuple((value,) * 4 for value in stage) for stage in ((1.0, 2.0), (10.0, 20.0)))
    dp = rng.choice((3, 4))
    return [
        Case("the example", example),
        Case("one replica", grads(1, rng.randint(3, 6), whole=True)),
        Case(f"{dp} replicas", grads(dp, dp * rng.randint(2, 4), whole=True)),
        Case("2 replicas, fractions", grads(2, 2 * rng.randint(3, 5), whole=False)),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: the pieces, equal copies, and what travels between the stages."""
    for case in cases(rng):
        comms: list[AxisComm] = []

        def arguments(rank, fabric, case=case, comms=comms):
            stage, replica = divmod(rank, case.dp)
            comms.append(AxisComm(rank, fabric, case.groups(rank)))
            return list(case.grads[stage][replica]), comms[-1]

        try:
            outcome = run(lambda rank: code.function("tied_gradient"), 2 * case.dp, arguments)
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=str(error))
            continue
        yield from _pieces(case, outcome.results)
        between = max(sum(count for axis, _, count in comm.calls if axis == "pp") for comm in comms)
        yield Check(
            name=f"{case.title}: stages exchange pieces",
            passed=between <= case.length // case.dp,
            expected=f"at most {case.length // case.dp} numbers a rank",
            got=str(between),
            message="Right or wrong, this sends more between the stages than is needed: after the "
            "reduce-scatter each rank cares for one piece only.",
        )


def _pieces(case: Case, results: list[object]) -> Iterator[Check]:
    name = f"{case.title}: every rank's piece"
    right = [value / case.dp for value in case.summed((0, 1))]
    for rank, got in enumerate(results):
        expected = case.piece(right, rank)
        at = differing(expected, got, tolerance=TOLERANCE)
        if at is not None:
            yield Check(
                name=name,
                passed=False,
                expected=f"rank {rank}: {shown(expected)}",
                got=shown(got),
                message=_why(case, rank, got, at),
            )
            return
    yield Check(name=name, passed=True)
    yield Check(
        name=f"{case.title}: both copies get the same to the last bit",
        passed=results[: case.dp] == results[case.dp :],
        message="The copies would drift apart. Let both stages use the result of the same sum.",
    )


def _why(case: Case, rank: int, got: object, at: int) -> str:
    if at == -1:
        return f"Return a list of {case.length // case.dp} numbers: this rank's piece."
    stage = rank // case.dp
    one, both = case.summed((stage,)), case.summed((0, 1))
    readings = (
        (1 / case.dp, one, "This is one stage's gradient only: add the other copy's."),
        (1.0, both, "This is the sum over replicas. Data parallelism takes their mean: divide by d."),
        (
            1 / (2 * case.dp),
            both,
            "This divides by the stages as well. Over them the gradient is a sum, not a mean.",
        ),
        (
            1 / 2,
            both,
            "This divides by the stages, not by the replicas: over stages it is a sum, over replicas a mean.",
        ),
    )
    for factor, values, lesson in readings:
        expected = [factor * value for value in case.piece(values, rank)]
        if differing(expected, got, tolerance=1e-9) is None:
            return lesson
    return (
        "Check what is added to what: after cutting over dp, only pieces of the same range may be added "
        "over pp, "
        "and each must be summed over the replicas already."
    )
