"""Grades schedules under a memory cap against the shortest there is (F, B and W of one unit each)."""

import random
from collections.abc import Iterator
from itertools import pairwise

from pdtlib.exercises.ch04_memory_cap.optimum import shortest_length
from pdtlib.exercises.pipeline import NoTable, programs, table, texts
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.schedule import Act, Costs, Schedule, first_fault, simulate

UNIT = Costs(forward=1, backward_input=1, backward_weight=1)
NEAR = 0.1
CLOSE = (
    "Close: a few units can still be saved. Sometimes W early makes room for an F that comes in time; no "
    "fixed order of priorities finds that, a search does."
)


def cases(rng: random.Random) -> list[tuple[int, int, int]]:
    """(stages, micro-batches, cap): no memory to spare, a little less than 1F1B's, 1F1B's, more."""
    stages, microbatches = rng.choice(((3, 6), (4, 6), (4, 7)))
    return [
        (2, rng.randint(3, 6), 1),
        (3, rng.randint(4, 7), 2),
        (4, 8, 3),
        (4, rng.randint(5, 8), 4),
        (stages, microbatches, stages - 1),
        (stages, microbatches, 2 * stages - 1),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: legal, within the cap, near the shortest, the shortest."""
    shortest = code.function("shortest")
    for stages, microbatches, cap in cases(rng):
        title = f"{stages} stages, {microbatches} micro-batches, cap {cap}"
        try:
            given = programs(call(shortest, stages, microbatches, cap), stages)
        except (NoTable, ReaderError) as error:
            yield Check(name=f"{title}: legal", passed=False, message=str(error))
            continue
        yield from _checks(title, table("yours", given, microbatches=microbatches), cap)


def _checks(title: str, given: Schedule, cap: int) -> Iterator[Check]:
    fault = first_fault(given)
    wrong = _without_weights(given)
    if fault is not None:
        wrong = f"Stage {fault.rank}, action {fault.index}: {fault.message}."
    if wrong:
        cells = texts(given.programs[fault.rank if fault else 0])
        yield Check(name=f"{title}: legal", passed=False, message=wrong, got=cells)
        return
    yield Check(name=f"{title}: legal", passed=True)
    over = first_fault(given, memory_cap=cap)
    if over is not None:
        yield Check(
            name=f"{title}: within the cap",
            passed=False,
            expected=f"at most {cap} on a stage",
            got=texts(given.programs[over.rank]),
            message=(
                f"Stage {over.rank}, action {over.index}: {over.message}. Activations are held until W has "
                "run."
            ),
        )
        return
    yield Check(name=f"{title}: within the cap", passed=True)
    best, length = shortest_length(given.stages, given.microbatches, cap), simulate(given, UNIT).makespan
    expected, got = f"{best}", f"{length:g}, {length / best - 1:.0%} above the shortest"
    yield Check(
        name=f"{title}: within a tenth of the shortest",
        passed=length <= best * (1 + NEAR),
        expected=expected,
        got=got,
        message=_far(given),
    )
    yield Check(
        name=f"{title}: the shortest there is",
        passed=length == best,
        expected=expected,
        got=got,
        message=CLOSE if length <= best * (1 + NEAR) else _far(given),
    )


def _without_weights(given: Schedule) -> str:
    """A table without W is legal for plan, where B is then the whole backward; here B is only a half."""
    for stage, deferred in enumerate(given.deferred):
        if len(deferred) < given.microbatches:
            runs = f"Stage {stage} runs W for {len(deferred)} of {given.microbatches} micro-batches"
            return f"{runs}: each needs its W."
    return ""


def _far(given: Schedule) -> str:
    if _one_at_a_time(given):
        return (
            "One micro-batch at a time leaves the other stages idle: start the next ones as far as the cap "
            "allows."
        )
    if all(_weights_at_once(program) for program in given.programs):
        return (
            "Each W runs right after its B, so nothing fills the waits, and the stage before gets its next "
            "gradient late. W is needed by nobody else: put it where the stage would wait."
        )
    return "Stages wait although they could work. Run B as soon as it can run: the stage before waits for it."


def _one_at_a_time(given: Schedule) -> bool:
    orders = [[act.micro_batch for act in program] for program in given.programs]
    return all(order == sorted(order) for order in orders)


def _weights_at_once(program: tuple[Act, ...]) -> bool:
    return all(after.op == "W" for act, after in pairwise(program) if act.op == "B")
