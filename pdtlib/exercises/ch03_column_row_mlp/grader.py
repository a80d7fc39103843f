"""Grades an MLP cut by columns and rows: values, gradients, and one all-reduce each way."""

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
ALLOWED = ("all_reduce",)


class Case(MlpCase):
    """Each rank has columns of A and the same rows of B."""

    def part(self, rank: int, world_size: int) -> slice:
        size = self.inner // world_size
        return slice(rank * size, (rank + 1) * size)


def cases(rng: random.Random, world_size: int) -> list[Case]:
    return [
        Case(
            f"{world_size} ranks, case {number}",
            rng.randint(3, 6),
            rng.randint(4, 9),
            world_size * rng.randint(2, 5),
            rng.randrange(2**30),
        )
        for number in (1, 2)
    ]


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """One forward and backward pass on this rank's parts."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    drawn, mine = case.drawn(), case.part(rank, world_size)
    x = drawn["x"].requires_grad_()
    a, b = drawn["a"][:, mine].clone().requires_grad_(), drawn["b"][mine].clone().requires_grad_()
    y = call(code.function("parallel_mlp"), x, a, b)
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return {"not_an_output": shape_text(y)}
    forward = traffic.sent_bytes
    if y.requires_grad:
        with told():
            y.backward(drawn["grad"])
    return {
        "y": y.detach().clone(),
        "x": x.grad,
        "a": a.grad,
        "b": b.grad,
        "forward_sent": forward,
        "backward_sent": traffic.sent_bytes - forward,
    }


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Two cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=ALLOWED)


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case."""
    world_size = len(results)
    if any("not_an_output" in result for result in results):
        got = next(result["not_an_output"] for result in results if "not_an_output" in result)
        name = f"{case.title}: the output is a tensor (tokens, h)"
        yield Check(name=name, passed=False, got=got)
        return
    whole = case.whole()
    yield _output(case, results, whole["y"])
    yield _x_gradient(case, results, whole["x"])
    for name in ("a", "b"):
        yield _weight_gradient(case, name, results, whole[name])
    once = sent_bytes("all_reduce", case.tokens * case.hidden * ELEMENT_BYTES, world_size)
    for direction, end in (("forward", "g sums the output"), ("backward", "f sums the input's gradient")):
        yield between(
            f"{case.title}: bytes sent {direction}, one all-reduce",
            least=once,
            most=once,
            got=[result[f"{direction}_sent"] for result in results],
            too_few=f"Nothing, or too little, is sent {direction}: {end}.",
            too_many=f"One all-reduce is enough {direction}: {end}, and nothing else is sent.",
        )


def _output(case: Case, results: list[dict[str, Any]], expected: torch.Tensor) -> Check:
    wrong = [rank for rank, result in enumerate(results) if not same(expected, result["y"])]
    drawn = case.drawn()
    lesson = "It is the sum over the ranks of tanh(x A_r) B_r."
    for rank in wrong:
        mine = case.part(rank, len(results))
        if same(torch.tanh(drawn["x"] @ drawn["a"][:, mine]) @ drawn["b"][mine], results[rank]["y"]):
            lesson = "This is the rank's own part of the sum: g is missing."
    return Check(
        name=f"{case.title}: the output", passed=not wrong, message=f"Wrong on rank {wrong}. {lesson}"
    )


def _x_gradient(case: Case, results: list[dict[str, Any]], expected: torch.Tensor) -> Check:
    world_size = len(results)
    wrong = [rank for rank, result in enumerate(results) if not same(expected, result["x"])]
    lesson = "It is the sum over the ranks of each rank's own gradient of x."
    for rank in wrong:
        got = results[rank]["x"]
        if got is None:
            lesson = "x has no gradient: the output is not connected to x."
        elif same(world_size * expected, got):
            lesson = f"It is {world_size} times too large: g's backward must hand the gradient on as it is."
        elif all(result["x"] is not None for result in results) and same(
            expected, sum(result["x"] for result in results)
        ):
            lesson = "Each rank has only its own part of the sum: f is missing."
    return Check(
        name=f"{case.title}: the gradient of x", passed=not wrong, message=f"Wrong on rank {wrong}. {lesson}"
    )


def _weight_gradient(case: Case, name: str, results: list[dict[str, Any]], expected: torch.Tensor) -> Check:
    world_size, wrong = len(results), []
    lesson = "It is this rank's part of the whole gradient, and needs no message."
    for rank, result in enumerate(results):
        mine = case.part(rank, world_size)
        own = expected[:, mine] if name == "a" else expected[mine]
        if same(own, result[name]):
            continue
        wrong.append(rank)
        if result[name] is None:
            lesson = f"{name} has no gradient: the output is not connected to it."
        elif same(world_size * own, result[name]):
            lesson = f"It is {world_size} times too large: g's backward must hand the gradient on as it is."
    return Check(
        name=f"{case.title}: the gradient of {name}",
        passed=not wrong,
        message=f"Wrong on rank {wrong}. {lesson}",
    )
