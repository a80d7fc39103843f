"""Grades ZeRO-1: parameters equal one process, moments sharded, as many bytes as an all-reduce."""

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from pdtlib.exercises import ranks
from pdtlib.exercises.memory import LiveBytes
from pdtlib.exercises.report import Check
from pdtlib.exercises.sharded_adam import (
    ELEMENT_BYTES,
    EPS,
    STEPS,
    Case,
    adam,
    between,
    cases,
    params_checks,
    set_grads,
)
from pdtlib.exercises.source import ReaderCode, call
from pdtlib.exercises.traffic import Traffic

WORLD_SIZES = (2, 3, 4)
ALLOWED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """Three steps: parameters after each, bytes sent in each, bytes alive between them."""
    rank, params = dist.get_rank(), case.params()
    result: dict[str, Any] = {"params": [], "sent": [], "held": 0}
    with LiveBytes(params) as memory:
        optimizer = call(code.function("Zero1Adam"), params, case.lr, case.betas, EPS)
        for step in range(STEPS):
            set_grads(params, case.grads(rank, step))
            traffic.reset()
            call(optimizer.step)
            result["sent"].append(traffic.sent_bytes)
            result["params"].append([param.detach().clone() for param in params])
            for param in params:
                param.grad = None
            memory.ignore([*params, *result["params"][-1]])
            result["held"] = max(
                result["held"], memory.settled(at_most=_most_held(case, dist.get_world_size()))
            )
    return result


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Two cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=ALLOWED)


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case."""
    world_size = len(results)
    grads = [case.grads(rank, 0) for rank in range(world_size)]
    total = [sum(parts) for parts in zip(*grads, strict=True)]
    mean = [grad / world_size for grad in total]
    slips = [
        ("This is Adam on the summed gradient: divide by the number of ranks.", adam(case, [total])),
        (
            "This is Adam on rank 0's own gradient: the ranks' gradients were not averaged.",
            adam(case, [grads[0]]),
        ),
        (
            "The bias correction is missing: m / (1 − β₁^t), v / (1 − β₂^t).",
            adam(case, [mean], corrected=False),
        ),
    ]
    undone = [(lesson, steps[0]) for lesson, steps in slips]
    yield from params_checks(case, results, case.expected(world_size), undone)
    yield _held(case, [result["held"] for result in results])
    yield _sent(case, world_size, [max(result["sent"]) for result in results])


def _most_held(case: Case, world_size: int) -> int:
    """Two moments of an even share, with an element of padding a tensor."""
    return 2 * (-(-case.numel // world_size) + len(case.shapes)) * ELEMENT_BYTES


def _held(case: Case, held: list[int]) -> Check:
    whole, most = 2 * case.numel * ELEMENT_BYTES, _most_held(case, len(held))
    if sum(held) < whole:
        lesson = "Less than both moments of every element is there. Keep the moments in torch tensors."
    elif max(held) >= whole:
        lesson = "Every rank keeps both moments of all parameters: that is plain data parallelism."
    else:
        lesson = "Something besides the share of both moments lives on: a flat copy, or reduced gradients?"
    return Check(
        name=f"{case.title}: a rank keeps the moments of its share only",
        passed=max(held) <= most and sum(held) >= whole,
        expected=f"at most {most:,} bytes, {whole:,} in all",
        got=", ".join(f"{value:,}" for value in held),
        message=lesson,
    )


def _sent(case: Case, world_size: int, sent: list[float]) -> Check:
    factor = (world_size - 1) / world_size * ELEMENT_BYTES
    if max(sent) > 2.9 * factor * case.numel:
        lesson = (
            "An all-reduce of the gradients plus an all-gather of the parameters is one and a half times "
            "plain data parallelism. A rank needs the reduced gradient of its share only: reduce-scatter."
        )
    else:
        lesson = "A reduce-scatter of the gradients and an all-gather of the parameters are enough."
    return between(
        f"{case.title}: bytes sent a step, reduce-scatter + all-gather",
        least=2 * factor * case.numel,
        most=2 * factor * case.padded_numel(world_size),
        got=sent,
        too_few="Too few bytes went through torch.distributed to average gradients and share parameters.",
        too_many=lesson,
    )
