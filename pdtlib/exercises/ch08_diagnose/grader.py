"""Grades diagnoses of prepared steps, :mod:`pdtlib.plan.faulty_steps`."""

import random
from collections.abc import Iterator

from pdtlib.exercises.compare import shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.faulty_steps import FAULTS, FaultyStep, healthy

DRAWS = 4
SIGNS = {
    "straggler": "One rank computes longer than the others and hardly waits; the others wait for it.",
    "bubble": "Ranks are in the lane wait pp: stages wait for each other.",
    "no overlap": "Every rank waits for few, large gradient messages that begin after the backward pass.",
    "data stall": "One rank is long in the lane data; the other waits for that rank's gradients.",
    "TP across nodes": "Ranks are in the lane wait tp, and a group of tp ranks is larger than a node.",
    "tiny buckets": "Gradients travel in many small messages; even the rank that waits least waits long.",
    "none": "All waits together are below a twentieth of the step: nothing is wrong.",
}


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Every kind of step, each a few times, in a drawn order."""
    makers = [*FAULTS.values(), healthy] * DRAWS
    rng.shuffle(makers)
    steps = [make(rng) for make in makers]
    for cause in (*FAULTS, "none"):
        mine = [step for step in steps if step.cause == cause]
        yield _grade(code, cause, mine)


def _grade(code: ReaderCode, cause: str, steps: list[FaultyStep]) -> Check:
    name = f"{len(steps)} steps with {cause}" if cause != "none" else f"{len(steps)} steps without a fault"
    for step in steps:
        given = {
            rank: [(span.lane, span.name, span.start_s, span.end_s) for span in spans]
            for rank, spans in step.ranks.items()
        }
        arguments = (given, step.parallel.get("tp", 1), step.gpus_per_node, list(step.gradient_bytes))
        try:
            got = call(code.function("diagnose"), *arguments)
        except ReaderError as error:
            return Check(name=name, passed=False, message=str(error))
        if got != cause:
            return Check(
                name=name,
                passed=False,
                expected=shown(cause),
                got=shown(got),
                message=_lesson(cause, got),
            )
    return Check(name=name, passed=True)


def _lesson(cause: str, got: object) -> str:
    if not isinstance(got, str) or got not in SIGNS:
        return f"Return one of {', '.join(map(repr, SIGNS))}."
    return SIGNS[cause]
