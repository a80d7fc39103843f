"""Grades readers by playing whole lives of runs: phases on some workers, each ended by a failure."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pdtlib.exercises.compare import shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call


@dataclass(frozen=True)
class Life:
    """``phases``: workers, and how many steps were saved when a failure ended it (None: no failure)."""

    title: str
    samples: int
    global_batch: int
    phases: tuple[tuple[int, int | None], ...]


class Wrong(Exception):
    """What was wrong, and in which phase."""


def lives(rng: random.Random) -> list[Life]:
    """From an undisturbed run to many changes."""
    batch = rng.randint(5, 9)
    return [
        Life("4 workers, nothing happens", 64, 8, ((4, None),)),
        Life("4 workers, then 2", 64, 8, ((4, 3), (2, None))),
        Life("4 workers, then 3, which do not divide the batch", 64, 8, ((4, 2), (3, None))),
        Life("a short last step", 61, 8, ((4, 5), (8, None))),
        Life("a failure before the first save", 48, 8, ((4, 0), (3, None))),
        Life(
            "hidden sizes, three changes",
            rng.randint(60, 120),
            batch,
            (*((rng.randint(1, batch), rng.randint(1, 3)) for _ in range(3)), (rng.randint(2, 5), None)),
        ),
        Life("more workers than samples in a step", 20, 3, ((5, 2), (4, None))),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per life: are all phases well dealt out, and has each sample been trained on once?"""
    for life in lives(rng):
        order = rng.sample(range(1000, 1000 + 7 * life.samples), life.samples)
        seen: Counter[int] = Counter()
        try:
            for number, (workers, saved) in enumerate(life.phases):
                steps = _phase(code, life, order, seen.total(), workers, number)
                for samples in steps if saved is None else steps[:saved]:
                    seen.update(samples)
        except Wrong as error:
            yield Check(name=life.title, passed=False, message=str(error))
            continue
        once = seen.total() == len(order) and set(seen) == set(order)
        yield Check(name=life.title, passed=once, message="Some samples were lost or read twice.")


def _phase(
    code: ReaderCode, life: Life, order: list[int], consumed: int, workers: int, number: int
) -> list[list[int]]:
    """The samples of each step of a phase, all ranks together."""
    where = (
        f"Phase {number + 1}: {workers} workers, {consumed} of {len(order)} samples consumed, "
        f"global_batch={life.global_batch}."
    )
    dealt = [
        _of_rank(code, order, consumed, life.global_batch, workers, rank, where) for rank in range(workers)
    ]
    batches = [
        order[start : start + life.global_batch] for start in range(consumed, len(order), life.global_batch)
    ]
    for rank, steps in enumerate(dealt):
        if len(steps) != len(batches):
            raise Wrong(
                f"Rank {rank} takes {len(steps)} steps; {len(batches)} are to come. "
                f"{_lesson_steps(steps, len(batches), consumed)} {where}"
            )
    for index, batch in enumerate(batches):
        parts = [steps[index] for steps in dealt]
        read = [sample for part in parts for sample in part]
        if Counter(read) != Counter(batch):
            raise Wrong(f"Step {index} from here: {_lesson_batch(read, batch, order, consumed)} {where}")
        sizes = [len(part) for part in parts]
        if max(sizes) - min(sizes) > 1:
            raise Wrong(
                f"Step {index} from here: ranks read {sizes} samples. "
                "Nobody should have two more than another. "
                f"{where}"
            )
    return batches


def _of_rank(
    code: ReaderCode, order: list[int], consumed: int, batch: int, workers: int, rank: int, where: str
) -> list[list[int]]:
    given = list(order)
    try:
        steps = call(code.function("remaining"), given, consumed, batch, workers, rank)
    except ReaderError as error:
        raise Wrong(f"{error}\n{where}") from None
    if given != order:
        raise Wrong(f"The order was changed: other ranks still read from it. {where}")
    if not isinstance(steps, list | tuple):
        raise Wrong(f"{wrong_type(steps, 'a list of lists')} {where}")
    if not all(isinstance(step, list | tuple) for step in steps):
        raise Wrong(f"Each step is a list of samples, got {shown(steps)}. {where}")
    return [list(step) for step in steps]


def _lesson_steps(steps: list[list[int]], to_come: int, consumed: int) -> str:
    if len(steps) > to_come and consumed:
        return "Begin behind what the saved weights have seen."
    if len(steps) == to_come - 1:
        return "The short last step counts, too, for every rank."
    return "The global batch stays, so the number of steps does not depend on the workers."


def _lesson_batch(read: list[int], batch: list[int], order: list[int], consumed: int) -> str:
    twice = [sample for sample, times in Counter(read).items() if times > 1]
    if twice:
        return f"sample {twice[0]} is read by two ranks."
    before = set(order[:consumed]) & set(read)
    if before:
        return f"sample {min(before)} is in the saved weights already."
    missing = set(batch) - set(read)
    if missing and not set(read) - set(batch):
        return f"{len(missing)} of the batch's samples are read by nobody. A batch need not divide evenly."
    return "these are not the next samples of the order. Fix first what a step reads, then deal it out."
