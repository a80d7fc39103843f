"""Grades a vocabulary-parallel cross-entropy: losses, gradients, stability, three numbers a token."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from pdtlib.exercises import ranks
from pdtlib.exercises.report import Check
from pdtlib.exercises.sharded_adam import ELEMENT_BYTES, between
from pdtlib.exercises.source import ReaderCode, call, told
from pdtlib.exercises.tensors import same
from pdtlib.exercises.traffic import Traffic
from pdtlib.plan.comm import sent_bytes

WORLD_SIZES = (2, 3)
ALLOWED = ("all_reduce",)
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Case:
    """Logits times ``scale``; the targets' gradient weighs the tokens differently."""

    title: str
    tokens: int
    vocab: int
    scale: float
    seed: int

    def drawn(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, targets and the losses' gradient, the same on every rank."""
        generator = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(self.tokens, self.vocab, generator=generator, dtype=torch.float64) * self.scale
        targets = torch.randint(self.vocab, (self.tokens,), generator=generator)
        targets[:2] = torch.tensor([0, self.vocab - 1])  # the first and the last rank have one for sure
        return logits, targets, torch.rand(self.tokens, generator=generator, dtype=torch.float64) + 0.5

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses and the logits' gradient of one process."""
        logits, targets, grad = self.drawn()
        logits.requires_grad_()
        losses = F.cross_entropy(logits, targets, reduction="none")
        losses.backward(grad)
        assert logits.grad is not None
        return losses.detach(), logits.grad


def cases(rng: random.Random, world_size: int) -> list[Case]:
    def drawn(title: str, scale: float) -> Case:
        vocab = world_size * rng.randint(3, 7)
        return Case(f"{world_size} ranks, {title}", rng.randint(4, 9), vocab, scale, rng.randrange(2**30))

    return [drawn("usual logits", 1.0), drawn("logits in the thousands", 3000.0)]


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """Losses and the gradient of this rank's columns."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logits, targets, grad = case.drawn()
    width = case.vocab // world_size
    part = logits[:, rank * width : (rank + 1) * width].clone().requires_grad_()
    losses = call(code.function("vocab_cross_entropy"), part, targets, rank * width)
    if not isinstance(losses, torch.Tensor) or losses.shape != (case.tokens,):
        shape = f"{tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
        return {"not_losses": shape}
    forward = traffic.sent_bytes
    if losses.requires_grad:
        with told():
            losses.backward(grad)
    return {
        "losses": losses.detach().clone(),
        "grad": part.grad,
        "forward_sent": forward,
        "backward_sent": traffic.sent_bytes - forward,
    }


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Two cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=ALLOWED)


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case."""
    if any("not_losses" in result for result in results):
        got = next(result["not_losses"] for result in results if "not_losses" in result)
        yield Check(name=f"{case.title}: the output is a tensor (tokens)", passed=False, got=got)
        return
    losses, grad = case.whole()
    yield _losses(case, results, losses)
    yield _gradient(case, results, grad)
    token = sent_bytes("all_reduce", case.tokens * ELEMENT_BYTES, len(results))
    yield between(
        f"{case.title}: bytes sent in forward, three numbers a token",
        least=2 * token,
        most=3 * token,
        got=[result["forward_sent"] for result in results],
        too_few="The target's logit and the sum of exponentials must be summed over the ranks.",
        too_many="Three numbers a token are enough: the largest logit, the target's logit, the sum.",
    )
    yield between(
        f"{case.title}: nothing is sent in backward",
        least=0,
        most=0,
        got=[result["backward_sent"] for result in results],
        too_few="",
        too_many="Each rank has its columns of the softmax and knows whether it has the target.",
    )


def _same(expected: torch.Tensor, got: object) -> bool:
    return same(expected, got, rtol=TOLERANCE, atol=TOLERANCE)


def _losses(case: Case, results: list[dict[str, Any]], expected: torch.Tensor) -> Check:
    name = f"{case.title}: the losses"
    logits, targets, _ = case.drawn()
    at_target = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    for rank, result in enumerate(results):
        got = result["losses"]
        if _same(expected, got):
            continue
        lesson = "log of the sum over all words of exp(logit), minus the target's logit."
        if not torch.isfinite(got).all():
            lesson = "Not finite: subtract the largest logit of all ranks before exp."
        elif _same(expected + at_target, got):
            lesson = "The target's logit is not subtracted."
        elif (got - expected).abs().amin() < TOLERANCE < (got - expected).abs().amax():
            lesson = "Some tokens are right: for the others another rank has the target's logit."
        return Check(name=name, passed=False, message=f"Wrong on rank {rank}. {lesson}")
    return Check(name=name, passed=True)


def _gradient(case: Case, results: list[dict[str, Any]], whole: torch.Tensor) -> Check:
    name, width = f"{case.title}: the gradient of the logits", case.vocab // len(results)
    _, targets, weight = case.drawn()
    plain = whole + F.one_hot(targets, case.vocab) * weight.unsqueeze(-1)
    for rank, result in enumerate(results):
        mine = slice(rank * width, (rank + 1) * width)
        got = result["grad"]
        if _same(whole[:, mine], got):
            continue
        lesson = "It is softmax over all words, minus one at the target, times the loss's gradient."
        if got is None:
            lesson = "The logits have no gradient: the losses are not connected to them."
        elif _same(plain[:, mine], got):
            lesson = "This is the softmax alone: subtract one at the target."
        elif _same(whole[:, mine] / weight.unsqueeze(-1), got):
            lesson = "Multiply by the gradient that comes from above: it weighs the tokens."
        return Check(name=name, passed=False, message=f"Wrong on rank {rank}. {lesson}")
    return Check(name=name, passed=True)
