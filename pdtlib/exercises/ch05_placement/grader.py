"""Grades traffic between nodes, counted rank by rank, and the order of axes that has the least of it."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from pdtlib.exercises.compare import same_int
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call


@dataclass(frozen=True)
class Case:
    title: str
    sizes: Mapping[str, int]
    gpus_per_node: int
    sent: Mapping[str, int]

    def between_nodes(self, order: Sequence[str]) -> int:
        """What all ranks send to other nodes, ring by ring."""
        world_size = 1
        for size in self.sizes.values():
            world_size *= size
        total, stride = 0, 1
        for axis in order:
            size = self.sizes[axis]
            crossing = 0
            for rank in range(world_size):
                last = rank // stride % size == size - 1
                following = rank - (size - 1) * stride if last else rank + stride
                crossing += following // self.gpus_per_node != rank // self.gpus_per_node
            total += crossing * self.sent[axis]
            stride *= size
        return total

    def least(self) -> int:
        return min(map(self.between_nodes, permutations(self.sizes)))


def cases(rng: random.Random) -> list[Case]:
    """The chapter's numbers; a node smaller than tp; a light tp; an axis of one; random ones."""
    gpt3 = {"tp": 405_874_409_472, "pp": 9_663_676_416, "dp": 10_195_562_496}

    def mixed(title: str, node: int) -> Case:
        sizes = {axis: rng.choice((1, 2, 3, 4, 6)) for axis in ("dp", "pp", "tp")}
        sizes["tp"] *= node
        traffic = {axis: rng.randint(1, 10**6) for axis in sizes}
        return Case(title, sizes, node, traffic)

    light = {"tp": rng.randint(1, 9), "pp": rng.randint(10, 90), "dp": rng.randint(10**4, 10**5)}
    return [
        Case("175B on 1,024 GPUs", {"dp": 16, "pp": 8, "tp": 8}, 8, gpt3),
        Case("16 tensor-parallel ranks, nodes of 8", {"dp": 4, "pp": 4, "tp": 16}, 8, gpt3),
        Case("hardly any traffic over tp", {"dp": 8, "pp": 2, "tp": 8}, 8, light),
        Case("one pipeline stage", {"dp": 6, "pp": 1, "tp": 4}, 8, {"tp": 7, "pp": 10**9, "dp": 3}),
        mixed("mixed sizes, nodes of 4", 4),
        mixed("mixed sizes, nodes of 16", 16),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: the bytes of some orders, then the order that is returned."""
    count, choose = code.function("between_nodes"), code.function("best_order")
    for case in cases(rng):
        sizes, sent = dict(case.sizes), dict(case.sent)
        try:
            wrong = None
            for order in permutations(sizes):
                got = call(count, order, sizes, case.gpus_per_node, sent)
                check = same_int(
                    f"{case.title}: bytes between nodes",
                    expected=case.between_nodes(order),
                    got=got,
                    message=f"Order {', '.join(order)}. {_wrong_count(case, order, got)}",
                )
                wrong = wrong or (None if check.passed else check)
            yield wrong or Check(name=f"{case.title}: bytes between nodes", passed=True)
            yield _order(case, call(choose, sizes, case.gpus_per_node, sent))
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=str(error))


def _wrong_count(case: Case, order: Sequence[str], got: object) -> str:
    lone = {axis: case.sizes[axis] for axis in order if case.sizes[axis] == 1}
    without_wrap = 0
    stride = 1
    world_size = 1
    for size in case.sizes.values():
        world_size *= size
    for axis in order:
        size = case.sizes[axis]
        for rank in range(world_size):
            if rank // stride % size < size - 1:
                crossed = (rank + stride) // case.gpus_per_node != rank // case.gpus_per_node
                without_wrap += crossed * case.sent[axis]
        stride *= size
    everything = world_size * sum(case.sent[axis] for axis in order if case.sizes[axis] > 1)
    backwards = case.between_nodes(order[::-1])
    if got == without_wrap:
        return "The last rank of a ring sends to the first, and that may cross nodes, too."
    if got == everything:
        return "This counts all messages. Only those to a rank on another node count."
    if got == backwards and len(set(case.sizes.values())) > 1:
        return "This takes the last axis of the order as the fastest."
    if lone:
        return "An axis of size 1 sends nothing."
    return "For each rank and axis: is the next rank of its ring on another node?"


def _order(case: Case, got: object) -> Check:
    name, least = f"{case.title}: the order with the least traffic", case.least()
    if not isinstance(got, list | tuple) or sorted(map(str, got)) != sorted(case.sizes):
        message = "Return a tuple that names each axis once, the fastest first."
        return Check(name=name, passed=False, got=repr(got)[:80], message=message)
    found = case.between_nodes(tuple(got))
    more = f"{found / least - 1:.0%} more than needed. " if least and found > least else ""
    return Check(
        name=name,
        passed=found == least,
        expected=f"{least:,} bytes",
        got=f"{', '.join(got)}: {found:,} bytes",
        message=f"{more}The axis with the most traffic is not always the one to put inside a node: count "
        "what each order sends between nodes, and compare.",
    )
