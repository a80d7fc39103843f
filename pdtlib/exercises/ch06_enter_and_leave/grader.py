"""Grades the ends of a region under sequence parallelism, around an MLP cut by columns and rows."""

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.exercises import ranks
from pdtlib.exercises.report import Check
from pdtlib.exercises.sharded_adam import ELEMENT_BYTES, between
from pdtlib.exercises.source import ReaderCode, call, told
from pdtlib.exercises.tensors import MlpCase, same, shape_text
from pdtlib.exercises.traffic import Traffic
from pdtlib.plan.comm import sent_bytes

WORLD_SIZES = (2, 3)
ALLOWED = ("all_reduce", "all_gather", "reduce_scatter")


class Case(MlpCase):
    """Each rank has positions of x and y, columns of A, rows of B."""

    def own(self, name: str, whole: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
        """The rank's positions of x and y, columns of a, rows of b."""
        return whole.chunk(world_size, dim=1 if name == "a" else 0)[rank]


def cases(rng: random.Random, world_size: int) -> list[Case]:
    return [
        Case(
            f"{world_size} ranks, case {number}",
            world_size * rng.randint(2, 4),
            rng.randint(3, 7),
            world_size * rng.randint(2, 4),
            rng.randrange(2**30),
        )
        for number in (1, 2)
    ]


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """The region on this rank, with what each end sends."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    drawn = case.drawn()
    x, a, b = (
        case.own(name, drawn[name], rank, world_size).clone().requires_grad_() for name in ("x", "a", "b")
    )
    whole = call(code.function("enter"), x)
    if not isinstance(whole, torch.Tensor) or whole.shape != drawn["x"].shape:
        return {"wrong_shape": f"enter returned {shape_text(whole)}, not {tuple(drawn['x'].shape)}"}
    entered = traffic.sent_bytes
    y = call(code.function("leave"), torch.tanh(whole @ a) @ b)
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return {"wrong_shape": f"leave returned {shape_text(y)}, not {tuple(x.shape)}"}
    forward = traffic.sent_bytes
    if y.requires_grad:
        with told():
            y.backward(case.own("y", drawn["grad"], rank, world_size))
    return {
        "y": y.detach().clone(),
        "x": x.grad,
        "a": a.grad,
        "b": b.grad,
        "sent": {
            "enter forward": entered,
            "leave forward": forward - entered,
            "both backward": traffic.sent_bytes - forward,
        },
    }


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Two cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=ALLOWED)


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case."""
    world_size = len(results)
    if any("wrong_shape" in result for result in results):
        message = next(result["wrong_shape"] for result in results if "wrong_shape" in result)
        yield Check(name=f"{case.title}: shapes", passed=False, message=message)
        return
    whole = case.whole()
    for name, what in (
        ("y", "the output"),
        ("x", "the gradient of x"),
        ("a", "the gradient of a"),
        ("b", "the gradient of b"),
    ):
        wrong = [
            rank
            for rank, result in enumerate(results)
            if not same(case.own(name, whole[name], rank, world_size), result[name])
        ]
        lesson = _lesson(case, name, results, whole[name]) if wrong else ""
        yield Check(
            name=f"{case.title}: {what}", passed=not wrong, message=f"Wrong on rank {wrong}. {lesson}"
        )
    once = sent_bytes("all_gather", case.tokens * case.hidden * ELEMENT_BYTES, world_size)
    for part, times in (("enter forward", 1), ("leave forward", 1), ("both backward", 2)):
        yield between(
            f"{case.title}: bytes sent, {part}",
            least=times * once,
            most=times * once,
            got=[result["sent"][part] for result in results],
            too_few="Too little is sent: enter gathers and leave sums, and backward the other way round.",
            too_many="Half of an all-reduce is enough for each end: an all-gather or a reduce-scatter.",
        )


def _lesson(case: Case, name: str, results: list[dict[str, Any]], whole: torch.Tensor) -> str:
    world_size = len(results)
    got = [result[name] for result in results]
    if any(value is None for value in got):
        return f"{name} has no gradient: something is not connected to it."
    right = [case.own(name, whole, rank, world_size) for rank in range(world_size)]
    if all(same(world_size * want, have) for want, have in zip(right, got, strict=True)):
        return f"It is {world_size} times too large."
    if all(same(want / world_size, have) for want, have in zip(right, got, strict=True)):
        return f"It is divided by {world_size}: nothing here is a mean."
    if name == "y":
        return "It is this rank's positions of the sum of all ranks' parts."
    if name == "x":
        return (
            "Every rank used the gathered positions. The gradients that they have for this rank's "
            "positions must be summed."
        )
    return "A rank's part went into every rank's positions: its gradient needs those of all of them."
