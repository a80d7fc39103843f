"""Grades a ring all-reduce on gloo processes: sums, bytes, neighbours, messages."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.exercises import ranks
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, call
from pdtlib.exercises.traffic import Traffic

ELEMENT_BYTES = 8
WORLD_SIZES = (2, 3, 4)


@dataclass(frozen=True)
class Case:
    title: str
    shape: tuple[int, ...]
    seed: int

    @property
    def size(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES

    def tensor(self, rank: int) -> torch.Tensor:
        """Whole numbers in float64: sums are exact in any order."""
        generator = torch.Generator().manual_seed(self.seed + rank)
        return torch.randint(-999, 999, self.shape, generator=generator).double()


def cases(rng: random.Random, world_size: int) -> list[Case]:
    """N divides the number of elements; does not, in two dimensions; fewer elements than ranks."""
    even = world_size * rng.randint(5, 40)
    rows = world_size * rng.randint(1, 4) + 1
    columns = rng.choice([n for n in range(3, 12) if (rows * n) % world_size])
    seeds = [rng.randrange(2**31) for _ in range(3)]
    return [
        Case(f"{world_size} ranks, {even} elements", (even,), seeds[0]),
        Case(f"{world_size} ranks, shape {rows} x {columns}", (rows, columns), seeds[1]),
        Case(f"{world_size} ranks, {world_size - 1} element(s)", (world_size - 1,), seeds[2]),
    ]


def on_rank(code: ReaderCode, case: Case, traffic: Traffic) -> dict[str, Any]:
    """Run the reader's function once and say what it returned and sent."""
    given = case.tensor(dist.get_rank())
    got = call(code.function("ring_all_reduce"), given)
    sends = [item for item in traffic.calls if item.kind == "send"]
    is_tensor = isinstance(got, torch.Tensor)
    return {
        "got": got.detach().clone() if is_tensor else type(got).__name__,
        "unchanged": torch.equal(given, case.tensor(dist.get_rank())),
        "sent": [item.message_bytes for item in sends],
        "peers": [item.peer for item in sends],
    }


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Three cases for every world size."""
    drawn = {world_size: cases(rng, world_size) for world_size in WORLD_SIZES}
    return ranks.grade_worlds(code, sys.modules[__name__], drawn, allowed=("send", "recv"))


def judge(case: Case, results: list[dict[str, Any]]) -> Iterator[Check]:
    """The checks of one case, from what every rank returned and sent."""
    world_size = len(results)
    expected = torch.stack([case.tensor(rank) for rank in range(world_size)]).sum(dim=0)
    wrong = [
        rank
        for rank, result in enumerate(results)
        if isinstance(result["got"], str)
        or result["got"].dtype != expected.dtype
        or result["got"].shape != expected.shape
        or not torch.equal(result["got"], expected)
    ]
    yield Check(
        name=f"{case.title}: the sum on every rank",
        passed=not wrong,
        message=_wrong_sum(case, results, wrong[0], expected) if wrong else "",
    )
    yield _bytes(case, [sum(result["sent"]) for result in results])
    strangers = [
        (rank, peer)
        for rank, result in enumerate(results)
        for peer in result["peers"]
        if peer != (rank + 1) % world_size
    ]
    yield Check(
        name=f"{case.title}: a rank sends only to its right-hand neighbour",
        passed=not strangers,
        got=f"rank {strangers[0][0]} sends to rank {strangers[0][1]}" if strangers else "",
        message="On a ring every link carries the same load; other routes share links and collide.",
    )
    most, allowed = max(len(result["sent"]) for result in results), 2 * (world_size - 1)
    yield Check(
        name=f"{case.title}: at most 2(N−1) messages a rank",
        passed=most <= allowed,
        expected=f"at most {allowed}",
        got=str(most),
        message="Every message costs a latency. Send a whole chunk in one message.",
    )
    yield Check(
        name=f"{case.title}: the given tensor is unchanged",
        passed=all(result["unchanged"] for result in results),
        message="The caller still needs it, and flatten() and view() share its memory: clone first.",
    )


def _wrong_sum(case: Case, results: list[dict[str, Any]], rank: int, expected: torch.Tensor) -> str:
    got = results[rank]["got"]
    if isinstance(got, str):
        return f"On rank {rank} the function returned a {got}, not a tensor."
    if got.dtype != expected.dtype:
        return f"On rank {rank} the result is {got.dtype}, the given tensor {expected.dtype}."
    if got.shape != expected.shape:
        return f"On rank {rank} the result has shape {tuple(got.shape)}, not {tuple(expected.shape)}."
    if torch.equal(got * len(results), expected):
        return "This is the mean: an all-reduce with the operation sum does not divide."
    share = (got != expected).double().mean().item()
    if torch.equal(got[got != expected], case.tensor(rank)[got != expected]):
        return (
            f"On rank {rank} {share:.0%} of the elements are still its own: those chunks never came back. "
            "After the reduce-scatter comes the all-gather, N − 1 more steps."
        )
    return (
        f"On rank {rank} {share:.0%} of the elements are wrong. Check which chunk is sent in which step, and "
        "that the second phase replaces instead of adding."
    )


def _bytes(case: Case, sent: list[int]) -> Check:
    world_size = len(sent)
    total = 2 * (world_size - 1) * case.size
    elements = case.size // ELEMENT_BYTES
    share = 2 * (world_size - 1) * -(-elements // world_size) * ELEMENT_BYTES
    if elements % world_size == 0:
        name = f"{case.title}: each rank sends exactly 2(N−1)/N × {case.size:,} bytes"
        passed, expected = all(count * world_size == total for count in sent), f"{total // world_size:,} each"
    else:
        name = f"{case.title}: all ranks together send exactly 2(N−1) × {case.size:,} bytes"
        passed = sum(sent) == total and max(sent) <= share
        expected = f"{total:,} together, at most {share:,} each"
    if world_size > 2 and all(count == (world_size - 1) * case.size for count in sent):
        message = "Whole tensors go round, (N−1) × size a rank: that grows with N. Send one chunk a step."
    elif elements % world_size and sum(sent) == world_size * share:
        message = "Padding travels too. Cut without padding: tensor_split gives lengths that differ by one."
    elif sum(sent) < total:
        message = "Too few bytes went through dist.send or dist.isend for every rank to learn the sum."
    elif max(sent) > 2 * min(sent):
        message = f"Rank {sent.index(max(sent))} sends far more than the others: a root is a bottleneck."
    else:
        message = "Send one chunk a step, N − 1 steps in each of the two phases."
    got = ", ".join(f"{count:,}" for count in sent)
    return Check(name=name, passed=passed, expected=expected, got=got, message=message)
