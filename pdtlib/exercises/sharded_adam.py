"""What the ZeRO-1 and ZeRO-2 exercises share: cases, the answer of one process, and common checks."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from pdtlib.exercises.report import Check

ELEMENT_BYTES = 8
EPS = 1e-8
ATOL = 1e-11
STEPS = 3


@dataclass(frozen=True)
class Case:
    """Parameters of these shapes, trained for some steps with Adam in float64."""

    title: str
    shapes: tuple[tuple[int, ...], ...]
    lr: float
    betas: tuple[float, float]
    seed: int

    @property
    def numel(self) -> int:
        return sum(map(prod, self.shapes))

    def padded_numel(self, world_size: int) -> int:
        """Elements when every tensor is padded to a multiple of the ranks by itself."""
        return sum(-(-prod(shape) // world_size) * world_size for shape in self.shapes)

    def _drawn(self, index: int, stream: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1_000 * index + stream)
        return torch.randn(*self.shapes[index], generator=generator, dtype=torch.float64)

    def params(self) -> list[torch.Tensor]:
        """The values that every rank starts from."""
        return [self._drawn(index, 0).requires_grad_() for index in range(len(self.shapes))]

    def grad(self, index: int, rank: int, step: int, micro_batch: int = 0) -> torch.Tensor:
        """A rank's own gradient of one parameter."""
        return self._drawn(index, 1 + rank + 10 * step + 100 * micro_batch)

    def grads(self, rank: int, step: int, micro_batch: int = 0) -> list[torch.Tensor]:
        """A rank's own gradients."""
        return [self.grad(index, rank, step, micro_batch) for index in range(len(self.shapes))]

    def expected(self, world_size: int, num_micro_batches: int = 1) -> list[list[torch.Tensor]]:
        """Parameters after each step, from one process: mean over ranks, sum over micro-batches."""
        grads = [
            [
                sum(parts) / world_size
                for parts in zip(
                    *(
                        self.grads(rank, step, micro_batch)
                        for rank in range(world_size)
                        for micro_batch in range(num_micro_batches)
                    ),
                    strict=True,
                )
            ]
            for step in range(STEPS)
        ]
        return adam(self, grads)


def adam(case: Case, grads: list[list[torch.Tensor]], *, corrected: bool = True) -> list[list[torch.Tensor]]:
    """Parameters after each step of Adam (Kingma and Ba 2015, algorithm 1) with these gradients.

    Written out because torch.optim takes seconds to import what it compiles with.
    """
    beta1, beta2 = case.betas
    params = [param.detach() for param in case.params()]
    first = [torch.zeros_like(param) for param in params]
    second = [torch.zeros_like(param) for param in params]
    found = []
    for step, step_grads in enumerate(grads, 1):
        correct1, correct2 = (1 - beta1**step, 1 - beta2**step) if corrected else (1.0, 1.0)
        for index, grad in enumerate(step_grads):
            first[index] = beta1 * first[index] + (1 - beta1) * grad
            second[index] = beta2 * second[index] + (1 - beta2) * grad.square()
            scale = (second[index] / correct2).sqrt() + EPS
            params[index] = params[index] - case.lr * (first[index] / correct1) / scale
        found.append(list(params))
    return found


def set_grads(params: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
    """Give every parameter its gradient, and keep no other reference to it."""
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad


def cases(rng: random.Random, world_size: int, *, num_tensors: int = 4) -> list[Case]:
    """One whose sizes N divides; one with odd sizes, among them a tensor smaller than N."""
    even = tuple((world_size * rng.randint(2, 6), rng.randint(5, 12)) for _ in range(num_tensors))
    matrices = ((rng.randint(4, 9), rng.randint(7, 12)) for _ in range(num_tensors - 2))
    odd: tuple[tuple[int, ...], ...] = ((rng.randint(11, 29),), *matrices, (1,))
    if sum(map(prod, odd)) % world_size == 0:
        odd = (*odd, (1,))
    lr, betas = rng.choice((1e-2, 3e-3)), (0.9, rng.choice((0.95, 0.99, 0.999)))
    return [
        Case(f"{world_size} ranks, even sizes", even, lr, betas, rng.randrange(2**30)),
        Case(f"{world_size} ranks, uneven sizes", odd, lr, betas, rng.randrange(2**30)),
    ]


def params_checks(
    case: Case, results: Sequence[dict[str, Any]], expected: list[list[torch.Tensor]], undone: Sequence[Any]
) -> Iterator[Check]:
    """Parameters after every step on every rank; ``undone`` are (lesson, wrong parameters after step 1)."""
    for step, want in enumerate(expected):
        name = f"{case.title}: parameters after step {step + 1} equal one process with Adam"
        wrong = [
            (rank, index)
            for rank, result in enumerate(results)
            for index, value in enumerate(want)
            if not _close(value, result["params"][step][index])
        ]
        if not wrong:
            yield Check(name=name, passed=True)
            continue
        rank, index = wrong[0]
        message = (
            f"Rank {rank}, parameter {index} differs, {len(wrong)} of {len(results) * len(want)} in all. "
        )
        yield Check(
            name=name, passed=False, message=message + _lesson(case, results, expected, undone, step, wrong)
        )
        return


def _close(want: torch.Tensor, got: torch.Tensor) -> bool:
    return want.shape == got.shape and torch.allclose(want, got, rtol=0, atol=ATOL)


def _lesson(
    case: Case,
    results: Sequence[dict[str, Any]],
    expected: list[list[torch.Tensor]],
    undone: Sequence[Any],
    step: int,
    wrong: list[tuple[int, int]],
) -> str:
    first = [result["params"][0] for result in results]
    start = case.params()
    if step:
        return (
            f"Step 1 was right, step {step + 1} is not: do moments and step count live on from step to "
            "step, and are gradients set back?"
        )
    if all(_close(a.detach(), b) for params in first for a, b in zip(start, params, strict=True)):
        return "Nothing changed: write the new values into the given parameters, under torch.no_grad()."
    if any(not torch.equal(a, b) for params in first[1:] for a, b in zip(first[0], params, strict=True)):
        fresh = sum(_close(want, got) for want, got in zip(expected[0], first[wrong[0][0]], strict=True))
        return (
            f"The ranks hold different parameters ({fresh} of {len(start)} tensors are right on rank "
            f"{wrong[0][0]}). After each rank has updated its own shard, an all-gather brings everybody the "
            "shards of the others."
        )
    for lesson, params in undone:
        if all(_close(a, b) for a, b in zip(params, first[0], strict=True)):
            return lesson
    return (
        "All ranks agree, on wrong values. Adam: m and v are moving averages of g and g², corrected by "
        "1 − β^t; the step is lr · m̂ / (√v̂ + eps)."
    )


def between(
    name: str, *, least: float, most: float, got: Sequence[float], too_few: str, too_many: str
) -> Check:
    """Bytes of every rank within bounds; the lower bound shows that they went the counted way."""
    low, high = min(got), max(got)
    bounds = f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"
    return Check(
        name=name,
        passed=least <= low and high <= most,
        expected=f"{bounds} bytes",
        got=", ".join(f"{value:,.0f}" for value in got),
        message=too_few if low < least else too_many,
    )
