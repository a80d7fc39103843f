"""Grades a token-weighted mean over micro-batches and ranks, and names the usual wrong averages."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pdtlib.exercises.compare import close, shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.simulator import CountComm, Outcome, run
from pdtlib.exercises.source import ReaderCode, ReaderError

IGNORED = -100
Token = tuple[float, int]
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    """``ranks[r][m]`` is micro-batch m of rank r."""

    title: str
    ranks: tuple[tuple[tuple[Token, ...], ...], ...]

    def valid(self, rank: int) -> list[list[float]]:
        """Gradients of the valid tokens of each of the rank's micro-batches."""
        return [
            [gradient for gradient, label in micro_batch if label != IGNORED]
            for micro_batch in self.ranks[rank]
        ]

    def total(self) -> int:
        return sum(len(micro) for rank in range(len(self.ranks)) for micro in self.valid(rank))

    def expected(self, rank: int) -> float:
        """N x the rank's sum / valid tokens of all ranks."""
        tokens = self.total()
        own = sum(sum(micro) for micro in self.valid(rank))
        return len(self.ranks) * own / tokens if tokens else 0.0


def _micro_batch(rng: random.Random, num_tokens: int, valid: float) -> tuple[Token, ...]:
    return tuple(
        (rng.uniform(-4, 4), rng.randrange(50_000) if rng.random() < valid else IGNORED)
        for _ in range(num_tokens)
    )


def _cut(rng: random.Random, num_ranks: int, valid: float = 0.7) -> tuple:
    return tuple(
        tuple(_micro_batch(rng, rng.randint(1, 12), valid) for _ in range(rng.randint(2, 4)))
        for _ in range(num_ranks)
    )


def _all_valid(*ranks: list[list[int]]) -> tuple:
    return tuple(
        tuple(tuple((float(value), 1) for value in micro) for micro in micro_batches)
        for micro_batches in ranks
    )


def cases(rng: random.Random) -> list[Case]:
    """The example, then hidden cuts."""
    empty_rank = tuple((rng.uniform(-4, 4), IGNORED) for _ in range(5))
    masked = tuple(tuple((1.0, IGNORED) for _ in range(3)) for _ in range(2))
    return [
        Case("the example", _all_valid([[1, 1, 1, 1], [6]], [[2, 2], [9]])),
        Case("one rank alone", _cut(rng, 1, 1.0)),
        Case("4 ranks, uneven micro-batches, every token valid", _cut(rng, 4, 1.0)),
        Case("3 ranks with masked tokens", _cut(rng, 3)),
        Case("2 ranks, one micro-batch is empty", (*_cut(rng, 1), ((), *_cut(rng, 1)[0]))),
        Case("3 ranks, one has no valid token", (*_cut(rng, 2), (empty_rank, empty_rank))),
        Case("2 ranks, no valid token anywhere", (masked, masked)),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: the average, each rank's share, and the number of all-reduces."""
    all_reduces = []
    for case in cases(rng):

        def arguments(rank, fabric, case=case):
            return [list(micro) for micro in case.ranks[rank]], CountComm(rank, fabric)

        try:
            outcome = run(lambda rank: code.function("rank_gradient"), len(case.ranks), arguments)
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=_explain(error))
            continue
        all_reduces.append(outcome.all_reduces)
        yield from _values(case, outcome)
    if all_reduces:
        yield Check(
            name="one all-reduce of one count is enough",
            passed=max(all_reduces) <= 1,
            expected="at most 1",
            got=str(max(all_reduces)),
            message="Count this rank's tokens over all its micro-batches first, then all-reduce once.",
        )


def _explain(error: ReaderError) -> str:
    text = str(error)
    if "ZeroDivisionError" in text:
        return f"{text}\nA micro-batch, or a whole rank, may have no valid token: divide by the global count."
    if "Deadlock" in text:
        return f"{text}\nA rank without valid tokens must take part in the all-reduce all the same."
    return text


def _values(case: Case, outcome: Outcome) -> Iterator[Check]:
    num_ranks = len(case.ranks)
    expected = [case.expected(rank) for rank in range(num_ranks)]
    got = outcome.results
    name = f"{case.title}: the ranks' returns average to the mean over tokens"
    for value in got:
        if type(value) not in (int, float):
            yield Check(name=name, passed=False, got=shown(value), message=wrong_type(value, "a float"))
            return
    mean = sum(expected) / num_ranks
    average = sum(got) / num_ranks
    right = close(mean, average, tolerance=TOLERANCE)
    yield Check(
        name=name, passed=right, expected=shown(mean), got=shown(average), message=_which_mean(case, average)
    )
    if right:
        own = all(close(e, g, tolerance=TOLERANCE) for e, g in zip(expected, got, strict=True))
        yield Check(
            name=f"{case.title}: each rank returns its own tokens' share",
            passed=own,
            expected=shown(expected),
            got=shown(got),
            message="The average is right, but not because of each rank's own tokens: a rank's gradient "
            "flows from its own tokens only.",
        )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _which_mean(case: Case, average: float) -> str:
    """Recognise the usual wrong averages by their value."""
    ranks = [case.valid(rank) for rank in range(len(case.ranks))]
    per_rank = [[gradient for micro in micro_batches for gradient in micro] for micro_batches in ranks]
    everything = [gradient for rank in per_rank for gradient in rank]
    num_ranks = len(ranks)
    masked_too = [gradient for rank in case.ranks for micro in rank for gradient, _ in micro]
    counts = [len(micro) for micro_batches in case.ranks for micro in micro_batches]
    wrong_means = (
        (
            _mean([_mean([_mean(micro) for micro in micro_batches]) for micro_batches in ranks]),
            "This is a mean of means: every micro-batch counts the same, so a token in a short one weighs "
            "more. Sum first, divide once, by the tokens of the whole batch.",
        ),
        (
            _mean([_mean(rank) for rank in per_rank]),
            "Each rank divides by its own tokens, so every rank counts the same, however many tokens it has. "
            "All-reduce the count and divide by that.",
        ),
        (
            sum(everything) / len(everything) / num_ranks if everything else 0.0,
            "Too small by the number of ranks: data parallelism divides by N after you. Undo it with × N.",
        ),
        (
            _mean([sum(rank) for rank in per_rank]),
            "This is a sum: nothing divides by the number of tokens, so the step grows with the batch.",
        ),
        (
            _mean([_mean([sum(micro) for micro in micro_batches]) for micro_batches in ranks]),
            "Nothing divides by the number of tokens, and the micro-batches are averaged. Divide once, by "
            "the tokens of the whole batch.",
        ),
        (
            _mean(masked_too),
            "Masked tokens are counted: skip the pairs whose label is −100, in the sum and in the count.",
        ),
        (
            sum(everything) / sum(counts) if sum(counts) else 0.0,
            "The sum skips masked tokens, but the count does not. Count valid tokens only.",
        ),
    )
    for value, lesson in wrong_means:
        if close(value, average, tolerance=TOLERANCE):
            return lesson
    return "Sum over this rank's valid tokens, divided by the valid tokens of all ranks, times N."
