"""Grades exposed time against :mod:`pdtlib.plan.intervals`."""

import random
from collections.abc import Iterator

from pdtlib.exercises.compare import same_int
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.intervals import length, union, without

Pairs = list[tuple[int, int]]
SHOWN = 6


def drawn(rng: random.Random, count: int, *, horizon: int, longest: int) -> Pairs:
    """Intervals in no order, some of them inside others."""
    found = []
    for _ in range(count):
        start = rng.randrange(horizon)
        found.append((start, start + rng.randint(1, longest)))
    return found


def cases(rng: random.Random) -> list[tuple[str, Pairs, Pairs, str]]:
    """Title, communication, computation, and what to think of when it is wrong."""
    return [
        ("nothing computes", [(3, 9), (12, 20)], [], "Without computation all of it is exposed."),
        ("nothing travels", [], [(0, 10)], "Without messages nothing is exposed."),
        ("all is hidden", [(5, 10), (12, 15)], [(0, 20)], "A message inside a kernel costs nothing."),
        (
            "two messages at once",
            [(0, 10), (5, 20)],
            [(8, 12)],
            "Messages that travel at the same time take that time once: merge them first.",
        ),
        (
            "a message inside another",
            [(0, 30), (5, 10), (20, 25)],
            [(40, 50)],
            "An interval inside another must not shorten it: the merged end is the later of the two.",
        ),
        (
            "two kernels at once",
            [(0, 30)],
            [(10, 20), (12, 18), (15, 22)],
            "Kernels that run at the same time hide that time once: merge them as well.",
        ),
        (
            "computation elsewhere",
            [(0, 10)],
            [(20, 60)],
            "Computation hides only messages that travel at the same time, not others.",
        ),
        ("ends that touch", [(0, 10), (10, 20)], [(20, 30)], "Intervals that touch overlap for no time."),
        (
            "in no order",
            [(50, 60), (0, 10), (55, 70)],
            [(58, 65), (5, 8)],
            "The lists are in no particular order: sort them.",
        ),
        *(
            (
                f"hidden intervals {number}",
                drawn(rng, rng.randint(5, 30), horizon=400, longest=60),
                drawn(rng, rng.randint(5, 20), horizon=400, longest=40),
                "Of the time in which something travels, take away that in which something computes.",
            )
            for number in (1, 2, 3)
        ),
        (
            "a long trace",
            drawn(rng, 4000, horizon=10**12, longest=10**9),
            drawn(rng, 4000, horizon=10**12, longest=10**8),
            "Sort once and go through once.",
        ),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Each case, exactly; and the reader's function must leave its arguments alone."""
    for title, communication, compute, lesson in cases(rng):
        given = (list(communication), list(compute))
        shown = f"communication={communication[:SHOWN]}, compute={compute[:SHOWN]}"
        try:
            got = call(code.function("exposed"), *given)
        except ReaderError as error:
            yield Check(name=title, passed=False, message=f"{error}\nWith {shown}.")
            continue
        expected = length(without(union(communication), union(compute)))
        yield same_int(title, expected=int(expected), got=got, message=f"{lesson} With {shown}.")
        if given != (communication, compute):
            yield Check(
                name=f"{title}: the lists are left as they were",
                passed=False,
                message="Sort a copy: whoever called still needs the lists.",
            )
