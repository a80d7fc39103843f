"""Grades bucketed data parallelism: gradients, the buckets' all-reduces, overlap with backward."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.exercises import ranks
from pdtlib.exercises.compare import shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, call, told
from pdtlib.exercises.traffic import Traffic
from pdtlib.plan.sharding import buckets

WORLD_SIZES = (2, 3)
STEPS = 2
ELEMENT_BYTES = 8
ATOL = 1e-12


@dataclass(frozen=True)
class Case:
    """A chain of layers; with ``extras`` also a frozen bias and parameters that some ranks don't use."""

    title: str
    widths: tuple[int, ...]
    bucket_bytes: int
    extras: bool
    seed: int

    def params(self) -> list[torch.Tensor]:
        """Weight and bias of every layer, in float64; in the middle, the extras."""
        generator = torch.Generator().manual_seed(self.seed)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

        found = []
        for index, (size, next_size) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            found += [drawn(next_size, size), drawn(next_size)]
            if self.extras and index == len(self.widths) // 2 - 1:
                found += [drawn(next_size), drawn(3)]  # used on rank 0 only; used nowhere
        if self.extras:
            found[1].requires_grad_(False)
        return found

    def loss(self, params: list[torch.Tensor], rank: int, step: int) -> torch.Tensor:
        """A rank's loss on its own batch of this step."""
        generator = torch.Generator().manual_seed(self.seed + 1000 * step + rank + 1)
        x = torch.randn(4, self.widths[0], generator=generator, dtype=torch.float64)
        left = iter(params)
        for index in range(len(self.widths) - 1):
            x = torch.tanh(x @ next(left).T + next(left))
            if self.extras and index == len(self.widths) // 2 - 1:
                sometimes, _ = next(left), next(left)
                x = x + sometimes if rank == 0 else x
        return x.square().sum()

    def expected(self, world_size: int, step: int) -> list[torch.Tensor]:
        """The mean over the ranks of each trainable parameter's gradient, from one process."""
        by_rank = []
        for rank in range(world_size):
            params = self.params()
            self.loss(params, rank, step).backward()
            by_rank.append(
                [
                    torch.zeros_like(param) if param.grad is None else param.grad
                    for param in params
                    if param.requires_grad
                ]
            )
        return [torch.stack(grads).mean(dim=0) for grads in zip(*by_rank, strict=True)]

    def bucket_sizes(self) -> list[int]:
        """Bytes of every bucket, in the order in which they are to be sent."""
        sizes = [param.numel() * ELEMENT_BYTES for param in self.params() if param.requires_grad]
        return [sum(sizes[index] for index in bucket) for bucket in buckets(sizes, self.bucket_bytes)]


def cases(rng: random.Random, world_size: int) -> list[Case]:
    widths = [tuple(rng.randint(3, 12) for _ in range(7)) for _ in range(2)]
    small, large = rng.randint(400, 700), 10**6
    seeds = [rng.randrange(2**30) for _ in range(3)]
    return [
        Case(f"{world_size} ranks, small buckets", widths[0], small, False, seeds[0]),
        Case(f"{world_size} ranks, one large bucket", widths[0], large, False, seeds[1]),
        Case(f"{world_size} ranks, frozen and unused parameters", widths[1], small, True, seeds[2]),
    ]


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> list[dict[str, Any]]:
    """Two steps; for each the error of every gradient and what was sent when."""
    rank = dist.get_rank()
    params = case.params()
    replica = call(code.function("BucketedDDP"), params, case.bucket_bytes)
    steps = []
    before_last = 0

    def first_layer_reached(grad: torch.Tensor) -> None:
        nonlocal before_last
        before_last = len(traffic.calls)

    params[0].register_hook(first_layer_reached)
    for step in range(STEPS):
        traffic.reset()
        for param in params:
            param.grad = None
        with told():
            case.loss(params, rank, step).backward()
        in_backward = len(traffic.calls)
        call(replica.finish)
        got = [param.grad for param in params if param.requires_grad]
        local = _local_gradients(case, rank, step)
        steps.append(
            {
                "grads": [None if grad is None else grad.detach().clone() for grad in got],
                "local": local,
                "sent": [item.message_bytes for item in traffic.calls],
                "before_last": before_last,
                "in_backward": in_backward,
                "asynchronous": all(item.asynchronous for item in traffic.calls),
                "waited": all(item.waited for item in traffic.calls if item.asynchronous),
            }
        )
    return steps


def _local_gradients(case: Case, rank: int, step: int) -> list[torch.Tensor | None]:
    params = case.params()
    case.loss(params, rank, step).backward()
    return [param.grad for param in params if param.requires_grad]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Three cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=("all_reduce",))


def judge(case: Case, results: list[list[dict[str, Any]]]) -> Iterator[Check]:
    """The checks of one case, from both steps of every rank."""
    for step in range(STEPS):
        yield _gradients(
            f"{case.title}, step {step + 1}: the mean gradient on every rank", case, results, step
        )
    sizes = case.bucket_sizes()
    sent = next((s["sent"] for steps in results for s in steps if s["sent"] != sizes), sizes)
    yield Check(
        name=f"{case.title}: one all-reduce a bucket, in bucket order",
        passed=sent == sizes,
        expected=f"{shown(sizes)} bytes",
        got=f"{shown(sent)} bytes",
        message=_wrong_sizes(case, sizes, sent),
    )
    if len(sizes) == 1:
        return
    every = [s for steps in results for s in steps]
    if not case.extras:
        early = min(s["before_last"] for s in every)
        started = min(s["in_backward"] for s in every)
        yield Check(
            name=f"{case.title}: buckets are sent while backward runs",
            passed=early >= 1 and started == len(sizes),
            expected=f"{len(sizes)} started in backward, the first before the first layer's gradient",
            got=f"{started} started in backward, {early} before the first layer's",
            message="What is sent after backward is not hidden behind it. Start a bucket in the hook that "
            "completes it.",
        )
    asynchronous = all(s["asynchronous"] for s in every)
    yield Check(
        name=f"{case.title}: all-reduces are asynchronous and waited for",
        passed=asynchronous and all(s["waited"] for s in every),
        message="A handle is never waited for: without handle.wait() the gradients may not be there yet."
        if asynchronous
        else "Without async_op=True the hook waits for the network, and backward stands still meanwhile.",
    )


def _gradients(name: str, case: Case, results: list[list[dict[str, Any]]], step: int) -> Check:
    world_size = len(results)
    expected = case.expected(world_size, step)
    for rank, steps in enumerate(results):
        for index, (want, got) in enumerate(zip(expected, steps[step]["grads"], strict=True)):
            # Unused on every rank: no gradient and a gradient of zeros are both right.
            got = torch.zeros_like(want) if got is None and not want.any() else got
            if got is None or got.shape != want.shape or not torch.allclose(want, got, rtol=0, atol=ATOL):
                return Check(
                    name=name,
                    passed=False,
                    message=_wrong_gradient(rank, index, want, got, steps[step], world_size, step),
                )
    return Check(name=name, passed=True)


def _wrong_gradient(
    rank: int,
    index: int,
    want: torch.Tensor,
    got: torch.Tensor | None,
    step_result: dict[str, Any],
    world_size: int,
    step: int,
) -> str:
    where = f"Rank {rank}, trainable parameter {index}: "
    if step and not step_result["sent"]:
        return "Nothing was sent in this step. Are the counters set back for the next backward in finish()?"
    local = step_result["local"][index]
    if got is None:
        return f"{where}no gradient. It was unused on this rank, but other ranks have a gradient for it."
    if got.shape != want.shape:
        return f"{where}the gradient has shape {tuple(got.shape)}, the parameter {tuple(want.shape)}."
    if torch.allclose(got, want * world_size, rtol=0, atol=ATOL):
        return f"{where}this is the sum over the ranks. Data parallelism takes the mean: divide by N."
    if local is not None and torch.allclose(got, local, rtol=0, atol=ATOL):
        return f"{where}this is the rank's own gradient: it was not reduced, or not written back."
    if torch.allclose(got, want / world_size, rtol=0, atol=ATOL):
        return f"{where}divided by N twice."
    return f"{where}wrong values. Does each piece of the flat bucket go back to its own parameter?"


def _wrong_sizes(case: Case, sizes: list[int], sent: list[int]) -> str:
    params = case.params()
    trainable = [param.numel() * ELEMENT_BYTES for param in params if param.requires_grad]
    if not sent:
        return "No gradient went through dist.all_reduce."
    if sorted(sent) == sorted(trainable):
        return "One all-reduce a tensor: every one costs a latency. Collect gradients in buckets."
    if sum(sent) == sum(param.numel() for param in params) * ELEMENT_BYTES != sum(trainable):
        return "Frozen parameters are sent too: they have no gradient."
    if sorted(sent) == sorted(sizes):
        return "The right buckets in another order: every rank must start bucket k before bucket k + 1."
    if len(sent) == 1:
        return "Everything in one bucket can only be sent when backward is over."
    forward = [
        sum(trainable[::-1][i] for i in bucket) for bucket in buckets(trainable[::-1], case.bucket_bytes)
    ]
    if sent == forward:
        return "The buckets are filled in forward order. Gradients come in reverse: the last layer's first."
    if sum(sent) < sum(trainable):
        return (
            "Some gradients are not sent. A bucket with an unused parameter never fills: finish() sends it."
        )
    return (
        "Close a bucket before the tensor that would take it over bucket_bytes, in reverse order of params."
    )
