"""Grades messages put into tables, on a channel without buffers: a send waits for its receive."""

import random
from collections.abc import Iterator

from pdtlib.exercises.pipeline import NoTable, programs
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.schedule import Lowered, Schedule, ScheduleError, build, check_messages


def cases(rng: random.Random) -> list[tuple[str, Schedule]]:
    """Two stages, where the circle is shortest; then longer pipelines, fewer micro-batches, other tables."""
    stages = rng.choice((3, 4, 5))
    sizes = [
        ("1f1b", 2, 4),
        ("gpipe", stages, rng.randint(3, 7)),
        ("1f1b", stages, rng.randint(stages + 1, 3 * stages)),
        ("1f1b", rng.choice((6, 8)), rng.randint(9, 16)),
        ("1f1b", 5, 2),
        ("article", 4, 7),
        ("naive", 3, rng.randint(2, 4)),
        ("1f1b", 1, 3),
    ]
    return [
        (f"{name}, {p} stages, {m} micro-batches", build(name, stages=p, microbatches=m))
        for name, p, m in sizes
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per table: does what was returned run to its end?"""
    place = code.function("with_messages")
    for title, schedule in cases(rng):
        name = f"{title}: runs to its end"
        computations = [[str(act) for act in program] for program in schedule.programs]
        kept = [list(program) for program in computations]
        try:
            given = programs(call(place, computations), schedule.stages)
        except (NoTable, ReaderError) as error:
            yield Check(name=name, passed=False, message=str(error))
            continue
        try:
            check_messages(Lowered(schedule=schedule, programs=given))
        except ScheduleError as error:
            yield Check(name=name, passed=False, message=f"{error}\n{_lesson(str(error))}")
            continue
        yield Check(name=name, passed=True)
        yield Check(
            name=f"{title}: the table that was given is left as it was",
            passed=computations == kept,
            message="Build new lists: whoever called still needs the table.",
        )


def _lesson(problem: str) -> str:
    if "deadlock" in problem:
        return (
            "Each of these stages waits for another one. Two neighbours that both send first wait for "
            "ever: let both "
            "follow one common order of messages."
        )
    if "came" in problem:
        return "A computation needs its message first: put the receive before it."
    if "sent before" in problem:
        return "Only what has been computed can be sent: put the send behind the computation."
    if "to nobody" in problem:
        return "The first stage has nobody before it and the last stage nobody behind it."
    if "twice" in problem or "already" in problem:
        return "Each message is sent once and received once."
    return "Keep the computations of each stage and their order; only add messages."
