"""Grades the gradients of a LayerNorm over tokens that lie on several ranks."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pdtlib.exercises.compare import differing, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.simulator import VALUE_BYTES, Outcome, run
from pdtlib.exercises.source import ReaderCode, ReaderError
from pdtlib.exercises.sum_comm import SumComm

TOLERANCE = 1e-9
EPS = 1e-5
Vector = list[float]


@dataclass(frozen=True)
class Case:
    """``tokens[r]`` and ``grads[r]`` are those of rank r."""

    title: str
    tokens: tuple[tuple[Vector, ...], ...]
    grads: tuple[tuple[Vector, ...], ...]
    weight: Vector

    def gradients(self, ranks: range) -> tuple[list[Vector], Vector, Vector]:
        """Of the tokens of these ranks alone: gradients of the tokens, of the weight and of the bias."""
        h = len(self.weight)
        of_tokens, of_weight, of_bias = [], [0.0] * h, [0.0] * h
        for rank in ranks:
            for x, grad in zip(self.tokens[rank], self.grads[rank], strict=True):
                mean = sum(x) / h
                sigma = (sum((value - mean) ** 2 for value in x) / h + EPS) ** 0.5
                hat = [(value - mean) / sigma for value in x]
                g = [a * w for a, w in zip(grad, self.weight, strict=True)]
                g_mean, along = sum(g) / h, sum(a * b for a, b in zip(g, hat, strict=True)) / h
                of_tokens.append([(a - g_mean - b * along) / sigma for a, b in zip(g, hat, strict=True)])
                of_weight = [total + a * b for total, a, b in zip(of_weight, grad, hat, strict=True)]
                of_bias = [total + a for total, a in zip(of_bias, grad, strict=True)]
        return of_tokens, of_weight, of_bias


def _case(rng: random.Random, title: str, counts: tuple[int, ...]) -> Case:
    h = rng.randint(3, 6)

    def drawn() -> tuple[tuple[Vector, ...], ...]:
        return tuple(tuple([rng.gauss(0, 1) for _ in range(h)] for _ in range(count)) for count in counts)

    return Case(title, drawn(), drawn(), [rng.uniform(0.5, 1.5) for _ in range(h)])


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """One rank, several, and one of them without tokens."""
    each = rng.randint(2, 3)
    for title, counts in (
        ("one rank", (each,)),
        ("2 ranks", (each, each)),
        ("4 ranks", (each,) * 4),
        ("3 ranks, one without tokens", (each, 0, each + 1)),
    ):
        yield from _grade(code, _case(rng, title, counts))


def _grade(code: ReaderCode, case: Case) -> Iterator[Check]:
    ranks = range(len(case.tokens))
    try:
        outcome = run(
            lambda rank: code.function("norm_gradients"),
            len(ranks),
            lambda rank, fabric: (
                [list(x) for x in case.tokens[rank]],
                [list(grad) for grad in case.grads[rank]],
                list(case.weight),
                EPS,
                SumComm(rank, fabric),
            ),
        )
    except ReaderError as error:
        yield Check(name=f"{case.title}: runs", passed=False, message=_explain(error))
        return
    for result in outcome.results:
        if not isinstance(result, tuple | list) or len(result) != 3:
            message = "Return three things: the tokens' gradients, the weight's, the bias's."
            yield Check(name=f"{case.title}: returns", passed=False, got=shown(result), message=message)
            return
    yield _tokens(case, outcome)
    for index, name in ((1, "weight"), (2, "bias")):
        yield _shared(case, outcome, index, name)
    if len(ranks) > 1:
        yield from _traffic(case, outcome)


def _explain(error: ReaderError) -> str:
    text = str(error)
    if "needs every rank" in text:
        return f"{text}\nA rank without tokens must take part in the all-reduce all the same, with zeros."
    return text


def _tokens(case: Case, outcome: Outcome) -> Check:
    name = f"{case.title}: the tokens' gradients"
    for rank, result in enumerate(outcome.results):
        expected, _, _ = case.gradients(range(rank, rank + 1))
        got = result[0]
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            message = f"Rank {rank} has {len(expected)} tokens: return a list of h numbers for each of them."
            return Check(name=name, passed=False, got=shown(got), message=message)
        for index, (want, have) in enumerate(zip(expected, got, strict=True)):
            if differing(want, have, tolerance=TOLERANCE) is not None:
                return Check(
                    name=name,
                    passed=False,
                    expected=shown(want),
                    got=shown(have),
                    message=f"Wrong for token {index} of rank {rank}. A token's gradient depends on that "
                    "token alone, so nothing of it is summed over tokens or ranks.",
                )
    return Check(name=name, passed=True)


def _shared(case: Case, outcome: Outcome, index: int, what: str) -> Check:
    name = f"{case.title}: the {what}'s gradient"
    ranks = range(len(case.tokens))
    expected: Any = case.gradients(ranks)[index]
    num_tokens = sum(map(len, case.tokens))
    for rank, result in enumerate(outcome.results):
        got = result[index]
        if differing(expected, got, tolerance=TOLERANCE) is None:
            continue
        own: Any = case.gradients(range(rank, rank + 1))[index]
        lesson = "It is the sum over all tokens of all ranks."
        if differing(own, got, tolerance=TOLERANCE) is None:
            lesson = (
                "This is from the rank's own tokens alone: all-reduce it, or the ranks' weights drift apart."
            )
        for count, of in ((len(ranks), "ranks"), (num_tokens, "tokens")):
            if differing([value / count for value in expected], got, tolerance=TOLERANCE) is None:
                lesson = (
                    f"This is a mean over the {of}. The loss's gradient is a sum over tokens: do not divide."
                )
        return Check(
            name=name,
            passed=False,
            expected=shown(expected),
            got=shown(got),
            message=f"{lesson} (Rank {rank}.)",
        )
    return Check(name=name, passed=True)


def _traffic(case: Case, outcome: Outcome) -> Iterator[Check]:
    yield Check(
        name=f"{case.title}: one all-reduce",
        passed=outcome.all_reduces <= 1,
        expected="at most 1",
        got=str(outcome.all_reduces),
        message="One message is enough: put both gradients into one list.",
    )
    most, sent = 2 * len(case.weight), max(outcome.sent_bytes()) // VALUE_BYTES
    yield Check(
        name=f"{case.title}: at most 2h numbers",
        passed=sent <= most,
        expected=f"at most {most}",
        got=str(sent),
        message="Only the two sums travel, not what belongs to single tokens.",
    )
