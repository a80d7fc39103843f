"""Grades ZeRO-2: as ZeRO-1, and gradients are reduced one by one and let go."""

import random
import sys
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
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
)
from pdtlib.exercises.source import ReaderCode, call
from pdtlib.exercises.traffic import Traffic

WORLD_SIZES = (2, 3)
MICRO_BATCHES = 2
ALLOWED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """Three steps of two micro-batches: parameters, bytes sent, bytes alive as gradients come and after."""
    rank, params = dist.get_rank(), case.params()
    pieces = 3 * _piece_bytes(case, dist.get_world_size())
    result: dict[str, Any] = {"params": [], "sent": [], "held": 0, "peak": 0}
    with LiveBytes(params) as memory:
        optimizer = call(code.function("Zero2Adam"), params, case.lr, case.betas, EPS)
        for step in range(STEPS):
            traffic.reset()
            memory.settled(at_most=pieces)  # the last all-gather's tensors, too
            memory.restart_peak()
            for micro_batch in range(MICRO_BATCHES):
                for index in reversed(range(len(params))):
                    # Nobody but the reader's code can keep this gradient.
                    call(optimizer.reduce, index, case.grad(index, rank, step, micro_batch))
                    memory.settled(at_most=pieces)  # what gloo still holds is not the reader's peak
            result["peak"] = max(result["peak"], memory.peak)
            result["held"] = max(result["held"], memory.settled(at_most=pieces))
            call(optimizer.step)
            result["sent"].append(traffic.sent_bytes)
            result["params"].append([param.detach().clone() for param in params])
            memory.ignore([*params, *result["params"][-1]])
    return result


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Two cases for every world size."""
    drawn = {world_size: cases(rng, world_size, num_tensors=12) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=ALLOWED)


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case."""
    world_size = len(results)
    yield from params_checks(
        case, results, case.expected(world_size, MICRO_BATCHES), _slips(case, world_size)
    )
    yield from _memory(case, results)
    yield _sent(case, world_size, [max(result["sent"]) for result in results])


def _slips(case: Case, world_size: int) -> list[tuple[str, list[torch.Tensor]]]:
    """The usual wrong gradients of the first step, and the parameters that follow from each."""
    by_micro_batch = [
        [sum(parts) for parts in zip(*(case.grads(rank, 0, m) for rank in range(world_size)), strict=True)]
        for m in range(MICRO_BATCHES)
    ]
    total = [sum(parts) for parts in zip(*by_micro_batch, strict=True)]
    mean = [grad / world_size for grad in total]
    slips = [
        ("This is Adam on the summed gradient: divide by the number of ranks.", total, True),
        (
            "Only the last micro-batch counts: add each micro-batch's piece to what is there.",
            [grad / world_size for grad in by_micro_batch[-1]],
            True,
        ),
        (
            "The micro-batches are averaged; the exercise sums them.",
            [grad / MICRO_BATCHES for grad in mean],
            True,
        ),
        ("The bias correction is missing: m / (1 − β₁^t), v / (1 − β₂^t).", mean, False),
    ]
    return [(lesson, adam(case, [grads], corrected=corrected)[0]) for lesson, grads, corrected in slips]


def _piece_bytes(case: Case, world_size: int) -> int:
    """Bytes of a rank's pieces of all gradients."""
    return case.padded_numel(world_size) // world_size * ELEMENT_BYTES


def _memory(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    world_size = len(results)
    pieces = _piece_bytes(case, world_size)
    whole, largest = case.numel * ELEMENT_BYTES, max(map(prod, case.shapes)) * ELEMENT_BYTES
    held, peak = [[result[key] for result in results] for key in ("held", "peak")]
    if sum(held) < 3 * whole:
        lesson = "Less than a gradient and two moments of every element is there. Keep them in torch tensors."
    elif max(held) >= whole + 2 * pieces:
        lesson = (
            f"The whole gradient, {whole:,} bytes, is still there. Keep a piece with storage of its own: a "
            "view, such as padded[a:b], keeps all of the padded tensor alive."
        )
    else:
        lesson = "More than the pieces stays alive: whole moments, or a flat copy?"
    yield Check(
        name=f"{case.title}: after the last reduce a rank holds pieces of gradients and moments only",
        passed=max(held) <= 3 * pieces and sum(held) >= 3 * whole,
        expected=f"at most {3 * pieces:,} bytes: a gradient and two moments of {pieces:,}",
        got=", ".join(f"{value:,}" for value in held),
        message=lesson,
    )
    most = 3 * pieces + 4 * largest
    yield Check(
        name=f"{case.title}: the peak while gradients arrive",
        passed=max(peak) <= most,
        expected=f"at most {most:,} bytes",
        got=", ".join(f"{value:,}" for value in peak),
        message="Gradients pile up before they are reduced: reduce each one when it comes, and wait for it.",
    )


def _sent(case: Case, world_size: int, sent: list[float]) -> Check:
    factor = (world_size - 1) / world_size * ELEMENT_BYTES
    passes = MICRO_BATCHES + 1
    lesson = "A reduce-scatter a gradient and one all-gather of the parameters are enough."
    if max(sent) >= (2 * MICRO_BATCHES + 1) * factor * case.numel:
        lesson = (
            "Gradients are all-reduced: that hands every rank the whole mean, twice the bytes, when it keeps "
            "only a piece of it. Reduce-scatter."
        )
    return between(
        f"{case.title}: bytes sent a step, {MICRO_BATCHES} reduce-scatters + all-gather",
        least=passes * factor * case.numel,
        most=passes * factor * case.padded_numel(world_size),
        got=sent,
        too_few="Too few bytes went through torch.distributed: is every micro-batch reduced when it comes?",
        too_many=lesson,
    )
