"""Grades ranks as numbers of a mixed base: coordinates, their inverse, groups."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call

CLUSTER = {"tp": 8, "pp": 8, "dp": 16}


@dataclass(frozen=True)
class Case:
    title: str
    sizes: Mapping[str, int]
    order: tuple[str, ...]

    @property
    def world_size(self) -> int:
        product = 1
        for size in self.sizes.values():
            product *= size
        return product

    def coordinates(self, rank: int) -> dict[str, int]:
        place = {}
        for axis in self.order:
            rank, place[axis] = divmod(rank, self.sizes[axis])
        return place

    def group(self, rank: int, axis: str) -> list[int]:
        place = self.coordinates(rank)
        stride = 1
        for faster in self.order[: self.order.index(axis)]:
            stride *= self.sizes[faster]
        first = rank - place[axis] * stride
        return [first + i * stride for i in range(self.sizes[axis])]


def cases(rng: random.Random) -> list[Case]:
    """The chapter's cluster in both orders, then other sizes, orders and a fourth axis."""
    axes = ["tp", "cp", "pp", "dp"]
    sizes = {axis: rng.choice((1, 2, 3, 4, 5)) for axis in axes}
    shuffled = tuple(rng.sample(axes, 4))
    return [
        Case("16 x 8 x 8, dp outermost", CLUSTER, ("tp", "pp", "dp")),
        Case("16 x 8 x 8, pp outermost", CLUSTER, ("tp", "dp", "pp")),
        Case("dp runs fastest", {"dp": rng.randint(2, 4), "pp": 3, "tp": 5}, ("dp", "tp", "pp")),
        Case(f"4 axes, {', '.join(shuffled)}", sizes, shuffled),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: coordinates of all ranks, the way back, groups."""
    functions = {name: code.function(name) for name in ("coordinates", "rank_at", "group")}
    for case in cases(rng):
        try:
            yield from _checks(case, functions, rng)
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=str(error))


def _checks(case: Case, functions: dict[str, Callable[..., Any]], rng: random.Random) -> Iterator[Check]:
    ranks = range(case.world_size)
    for rank in ranks:
        expected = case.coordinates(rank)
        got = call(functions["coordinates"], rank, dict(case.sizes), case.order)
        if got != expected or not all(type(value) is int for value in got.values()):
            yield Check(
                name=f"{case.title}: coordinates",
                passed=False,
                expected=f"rank {rank}: {expected}",
                got=repr(got)[:120],
                message=_wrong_place(case, rank, got),
            )
            return
    yield Check(name=f"{case.title}: coordinates", passed=True)
    for rank in ranks:
        got = call(functions["rank_at"], case.coordinates(rank), dict(case.sizes), case.order)
        if type(got) is not int or got != rank:
            yield Check(
                name=f"{case.title}: back to the rank",
                passed=False,
                expected=f"{case.coordinates(rank)}: {rank}",
                got=repr(got)[:120],
                message="Each axis counts in steps of the product of the sizes of all faster axes.",
            )
            return
    yield Check(name=f"{case.title}: back to the rank", passed=True)
    for axis in case.order:
        rank = rng.randrange(case.world_size)
        got = call(functions["group"], rank, axis, dict(case.sizes), case.order)
        expected_group = case.group(rank, axis)
        yield Check(
            name=f"{case.title}: the {axis} group of rank {rank}",
            passed=isinstance(got, list | tuple) and list(got) == expected_group,
            expected=_short(expected_group),
            got=_short(got),
            message=_wrong_group(case, rank, axis, got, expected_group),
        )


def _short(group: object) -> str:
    text = repr(list(group) if isinstance(group, list | tuple) else group)
    return text if len(text) <= 80 else text[:77] + "…"


def _wrong_place(case: Case, rank: int, got: object) -> str:
    if not isinstance(got, dict):
        return "Return a dict with a coordinate for each axis."
    reverse = Case("", case.sizes, case.order[::-1])
    if got == reverse.coordinates(rank):
        return (
            "This takes the last axis of the order as the fastest. The first one is: its ranks are "
            "neighbours."
        )
    by_dict = Case("", case.sizes, tuple(case.sizes))
    if got == by_dict.coordinates(rank):
        return "This goes by the order of the dict. Only `order` says which axis runs fastest."
    return "Take the fastest axis first: remainder by its size, and go on with the quotient."


def _wrong_group(case: Case, rank: int, axis: str, got: object, expected: Sequence[int]) -> str:
    if isinstance(got, list | tuple) and rank not in got:
        return "The rank itself belongs to its group."
    if isinstance(got, list | tuple) and len(got) == len(expected) and got and got[0] == rank:
        return "A group begins at coordinate 0, wherever this rank stands in it."
    if isinstance(got, list | tuple) and sorted(map(str, got)) == sorted(map(str, expected)):
        return "The right ranks in another order: sort them by their coordinate."
    return "Keep all other coordinates of this rank and let this one run from 0 to its size less one."
