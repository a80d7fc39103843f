"""Grades ZeRO-3 on a stack of linear layers: values, gradients, bytes sent, whole weights kept or not."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.exercises import ranks
from pdtlib.exercises.memory import LiveBytes
from pdtlib.exercises.report import Check
from pdtlib.exercises.sharded_adam import ELEMENT_BYTES, between
from pdtlib.exercises.source import ReaderCode, call, told
from pdtlib.exercises.tensors import same
from pdtlib.exercises.traffic import Traffic
from pdtlib.plan.sharding import padded_numel, shard_range

WORLD_SIZES = (2, 3)
ALLOWED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
BATCH = 2
ATOL = 1e-11
# Whole weights at once: the gathered one and a concatenated or padded copy; in backward also its gradient.
FORWARD_WEIGHTS, BACKWARD_WEIGHTS = 2.5, 4.5


@dataclass(frozen=True)
class Case:
    """A stack of linear layers with tanh between them."""

    title: str
    widths: tuple[int, ...]
    seed: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(size, previous) for previous, size in pairwise(self.widths)]

    def weights(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        return [
            torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[1] ** 0.5
            for shape in self.shapes
        ]

    def x(self, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1 + rank)
        return torch.randn(BATCH, self.widths[0], generator=generator, dtype=torch.float64)

    def shards(self, rank: int, world_size: int) -> list[torch.Tensor]:
        """The rank's piece of every weight, padded."""
        return [cut(weight, rank, world_size).requires_grad_() for weight in self.weights()]

    def whole(self, rank: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Output, gradient of x, and gradients of the whole weights, for one rank's batch alone."""
        x = self.x(rank).requires_grad_()
        weights = [weight.requires_grad_() for weight in self.weights()]
        y = x
        for weight in weights:
            y = torch.tanh(y @ weight.T)
        x_grad, *grads = torch.autograd.grad(y.square().sum(), [x, *weights])
        return y.detach(), x_grad, grads

    def padded_bytes(self, world_size: int) -> int:
        return sum(padded_numel(a * b, world_size) for a, b in self.shapes) * ELEMENT_BYTES

    def rest_bytes(self, world_size: int) -> int:
        """What may live in backward beside whole weights: outputs, their gradients, the shards' gradients."""
        outputs = sum(BATCH * 2 * (a + b) for a, b in self.shapes) * ELEMENT_BYTES
        return outputs + self.padded_bytes(world_size) // world_size


def cut(weight: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """A rank's piece of the flattened and padded weight, in storage of its own."""
    flat = weight.new_zeros(padded_numel(weight.numel(), world_size))
    flat[: weight.numel()] = weight.detach().flatten()
    return flat[slice(*shard_range(weight.numel(), world_size, rank))].clone()


def cases(rng: random.Random, world_size: int) -> list[Case]:
    even = world_size * rng.randint(12, 16)
    odd = [n for n in range(25, 45) if n % world_size]
    return [
        Case(f"{world_size} ranks, 6 even layers", (even,) * 7, rng.randrange(2**30)),
        Case(
            f"{world_size} ranks, 5 uneven layers",
            tuple(rng.choice(odd) for _ in range(6)),
            rng.randrange(2**30),
        ),
    ]


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """One forward and backward through the stack, with what is sent and alive in each."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, shards = case.x(rank).requires_grad_(), case.shards(rank, world_size)
    layer = code.function("zero3_linear")
    result: dict[str, Any] = {}
    with LiveBytes([x, *shards]) as memory:
        y, outputs = x, []
        for shard, shape in zip(shards, case.shapes, strict=True):
            y = call(layer, y, shard, shape)
            if not isinstance(y, torch.Tensor) or y.shape != (BATCH, shape[0]):
                return {
                    "not_an_output": f"{tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
                }
            outputs.append(y)
            y = torch.tanh(y)
            outputs.append(y)
            # What gloo's threads still hold of one layer must not count as kept until the next.
            kept_bytes = sum(output.numel() for output in outputs) * ELEMENT_BYTES
            memory.settled(at_most=kept_bytes)
            if y.requires_grad:
                y.register_hook(partial(_settle_after, memory, case.rest_bytes(world_size)))
        result["forward_sent"] = traffic.sent_bytes
        result["forward_peak"] = memory.peak
        outputs_bytes = sum(output.numel() for output in outputs) * ELEMENT_BYTES
        result["forward_held"] = memory.settled(at_most=outputs_bytes) - outputs_bytes
        memory.restart_peak()
        loss = y.square().sum()
        if loss.requires_grad:
            with told():
                loss.backward()
        result["backward_peak"] = memory.peak
        result["sent"] = traffic.sent_bytes
        del outputs
        result["y"], result["x_grad"] = y.detach().clone(), x.grad
        result["shard_grads"] = [shard.grad for shard in shards]
    return result


def _settle_after(memory: LiveBytes, at_most: int, grad: torch.Tensor) -> None:
    """A hook: wait until no more is left than what is no weight."""
    memory.settled(at_most=at_most)


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Two cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=ALLOWED)


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case."""
    world_size = len(results)
    if any("not_an_output" in result for result in results):
        got = next(result["not_an_output"] for result in results if "not_an_output" in result)
        yield Check(
            name=f"{case.title}: the output is a tensor (batch, out)",
            passed=False,
            got=got,
            message="Return x @ weight.T.",
        )
        return
    whole = [case.whole(rank) for rank in range(world_size)]
    yield _outputs(case, results, whole)
    yield _x_gradients(case, results, whole)
    yield _shard_gradients(case, results, whole)
    yield from _sent(case, results)
    yield from _memory(case, results)


def _same(want: torch.Tensor, got: Any) -> bool:
    return same(want, got, rtol=0, atol=ATOL)


def _outputs(case: Case, results: list[dict[str, Any]], whole: list[Any]) -> Check:
    wrong = [rank for rank, result in enumerate(results) if not _same(whole[rank][0], result["y"])]
    return Check(
        name=f"{case.title}: outputs equal the whole weights'",
        passed=not wrong,
        message=f"Wrong on rank {wrong}. The pieces in rank order, without the padding at the end, viewed as "
        "(out, in), are the weight."
        if wrong
        else "",
    )


def _x_gradients(case: Case, results: list[dict[str, Any]], whole: list[Any]) -> Check:
    wrong = [rank for rank, result in enumerate(results) if not _same(whole[rank][1], result["x_grad"])]
    none = any(result["x_grad"] is None for result in results)
    return Check(
        name=f"{case.title}: the gradient of x",
        passed=not wrong,
        message="x has no gradient: the output is not connected to x."
        if none
        else f"Wrong on rank {wrong}. It is grad @ weight of its own batch: neither reduced nor divided.",
    )


def _shard_gradients(case: Case, results: list[dict[str, Any]], whole: list[Any]) -> Check:
    world_size = len(results)
    name = f"{case.title}: the gradient of every shard is the mean over the ranks"
    for layer in range(len(case.shapes)):
        per_rank = [grads[layer] for _, _, grads in whole]
        mean = sum(per_rank) / world_size
        for rank, result in enumerate(results):
            got = result["shard_grads"][layer]
            real = _without_padding(mean, rank, world_size)
            if _same(cut(mean, rank, world_size)[:real], got if got is None else got[:real]):
                continue
            where = f"Layer {layer}, rank {rank}: "
            if got is None:
                lesson = "no gradient. The shard must take part: an argument of your Function, not detached."
            elif _same(cut(mean * world_size, rank, world_size)[:real], got[:real]):
                lesson = "this is the sum over the ranks. Divide by N."
            elif _same(cut(per_rank[rank], rank, world_size)[:real], got[:real]):
                lesson = "this is the rank's own gradient: reduce-scatter it over the ranks."
            elif _same(cut(per_rank[rank] / world_size, rank, world_size)[:real], got[:real]):
                lesson = "this is the rank's own gradient divided by N: the others' are missing."
            else:
                lesson = "wrong values. The weight's gradient is grad.T @ x, (out, in), flattened and padded."
            return Check(name=name, passed=False, message=where + lesson)
    return Check(name=name, passed=True)


def _without_padding(weight: torch.Tensor, rank: int, world_size: int) -> int:
    """How many elements of the rank's piece are not padding."""
    start, stop = shard_range(weight.numel(), world_size, rank)
    return max(0, min(stop, weight.numel()) - start)


def _sent(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    world_size = len(results)
    once = (world_size - 1) / world_size * case.padded_bytes(world_size)
    forward = [result["forward_sent"] for result in results]
    backward = [result["sent"] - result["forward_sent"] for result in results]
    yield between(
        f"{case.title}: bytes sent in forward, an all-gather a layer",
        least=once,
        most=once,
        got=forward,
        too_few="Too few bytes went through torch.distributed to gather every weight.",
        too_many="One all-gather a layer is enough in forward.",
    )
    kept = max(backward) <= 1.01 * once
    yield between(
        f"{case.title}: bytes sent in backward, an all-gather and a reduce-scatter a layer",
        least=2 * once,
        most=2 * once,
        got=backward,
        too_few="Backward does not gather the weights again: are they kept from forward?"
        if kept
        else "Too few bytes for an all-gather and a reduce-scatter a layer.",
        too_many="An all-reduce sends twice a reduce-scatter's bytes to hand out what the ranks do not keep."
        if max(backward) >= 2.99 * once
        else "One all-gather and one reduce-scatter a layer are enough in backward.",
    )


def _memory(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    weight = max(a * b for a, b in case.shapes) * ELEMENT_BYTES
    smallest = min(a * b for a, b in case.shapes) * ELEMENT_BYTES
    held = [result["forward_held"] for result in results]
    yield Check(
        name=f"{case.title}: no whole weight is kept after forward",
        passed=max(held) < smallest,
        expected=f"less than {smallest:,} bytes besides outputs",
        got=", ".join(f"{value:,}" for value in held),
        message=f"{max(held) / smallest:.1f} whole weights are alive after forward. Autograd keeps what an "
        "operation needs for backward: save only x and the shard, and gather again.",
    )
    for part, weights in (("forward", FORWARD_WEIGHTS), ("backward", BACKWARD_WEIGHTS)):
        peak = [result[f"{part}_peak"] for result in results]
        most = int(weights * weight) + case.rest_bytes(len(results))
        yield Check(
            name=f"{case.title}: the peak in {part}",
            passed=max(peak) <= most,
            expected=f"at most {most:,} bytes",
            got=", ".join(f"{value:,}" for value in peak),
            message=f"A whole weight has {weight:,} bytes: too many of them are alive at once.",
        )
