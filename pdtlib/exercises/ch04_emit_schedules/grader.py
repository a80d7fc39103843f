"""Grades emitted tables: legal, as short as the closed form says, holding what the schedule should hold.

GPipe: Huang et al. 2018, section 2.3. 1F1B and interleaving: Narayanan et al. 2021, section 2.2.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pdtlib.exercises.pipeline import NoTable, program, table, texts
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.schedule import Costs, Schedule, build, first_fault, simulate

COSTS = Costs(forward=1, backward_input=1, backward_weight=1)


@dataclass(frozen=True)
class Case:
    kind: str
    stages: int
    microbatches: int
    chunks: int = 1

    @property
    def title(self) -> str:
        more = f", {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{self.kind}, {self.stages} stages{more}, {self.microbatches} micro-batches"

    def reference(self) -> Schedule:
        chunks = self.chunks if self.kind == "interleaved" else None
        return build(self.kind, stages=self.stages, microbatches=self.microbatches, chunks=chunks)


def cases(rng: random.Random) -> list[Case]:
    """Hidden sizes: more and fewer micro-batches than stages, one stage alone, two and three chunks."""
    p = rng.choice((3, 4, 5, 6))
    return [
        Case("gpipe", p, rng.randint(p + 1, 3 * p)),
        Case("1f1b", 4, 8),
        Case("1f1b", p, rng.randint(p + 1, 4 * p)),
        Case("1f1b", rng.randint(4, 7), 2),
        Case("1f1b", 1, 3),
        Case("interleaved", 4, 8, 2),
        Case("interleaved", p, p * rng.randint(2, 3), 2),
        Case("interleaved", rng.choice((2, 3)), 6, 3),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: is it a table, is it legal, how long, and how much is held."""
    emit = code.function("program")
    for case in cases(rng):
        name = f"{case.title}: a legal table"
        try:
            programs = [
                program(call(emit, case.kind, stage, case.stages, case.microbatches, case.chunks))
                for stage in range(case.stages)
            ]
        except ReaderError as error:
            yield Check(name=name, passed=False, message=str(error))
            continue
        except NoTable as error:
            yield Check(name=name, passed=False, message=f"{error}{_why(case, 'action')}")
            continue
        yield from _checks(
            case, name, table(case.kind, programs, microbatches=case.microbatches, chunks=case.chunks)
        )


def _checks(case: Case, name: str, given: Schedule) -> Iterator[Check]:
    fault = first_fault(given)
    if fault is not None:
        yield Check(
            name=name,
            passed=False,
            got=texts(given.programs[fault.rank]),
            message=f"Stage {fault.rank}, action {fault.index}: {fault.message}.{_why(case, fault.rule)}",
        )
        return
    yield Check(name=name, passed=True)
    ours, theirs = simulate(case.reference(), COSTS), simulate(given, COSTS)
    yield Check(
        name=f"{case.title}: the step's length",
        passed=abs(theirs.makespan - ours.makespan) < 1e-9,
        expected=f"{ours.makespan:g}",
        got=f"{theirs.makespan:g}",
        message=_too_long(case, given),
    )
    yield Check(
        name=f"{case.title}: micro-batches that each stage holds",
        passed=theirs.peak_in_flight == ours.peak_in_flight,
        expected=", ".join(f"{peak:g}" for peak in ours.peak_in_flight),
        got=", ".join(f"{peak:g}" for peak in theirs.peak_in_flight),
        message=_held(case, theirs.peak_in_flight),
    )


def _why(case: Case, rule: str) -> str:
    if case.microbatches < case.stages and rule in ("action", "once"):
        return (
            " There are fewer micro-batches than stages: the warm-up is never longer than there are forwards."
        )
    if case.kind == "interleaved" and rule == "deadlock":
        return " Backwards begin with the last chunk: it holds the end of the model."
    if case.kind == "interleaved" and rule == "order":
        return " The warm-up takes whole rounds through all chunks before the first backward can come."
    if rule == "deadlock":
        return " Stages that wait for each other never go on: what must a stage have sent before it waits?"
    return ""


def _too_long(case: Case, given: Schedule) -> str:
    warmups = [next((i for i, act in enumerate(acts) if act.op == "B"), 0) for acts in given.programs]
    if warmups == [1] * case.stages and case.stages > 1:
        return (
            "One micro-batch at a time: each stage waits while its micro-batch is elsewhere. Keep forwards "
            "coming."
        )
    if case.kind == "1f1b" and len(set(warmups)) == 1 and case.stages > 1:
        return (
            f"Every stage runs {warmups[0]} forwards before its first backward. The warm-up differs by "
            "stage: "
            "a stage nearer to the end sees its first backward earlier, so it needs fewer."
        )
    if case.kind == "interleaved":
        return (
            "A round of p micro-batches goes through chunk 0, then through chunk 1; backwards start with "
            "the last "
            "chunk. Compare your warm-up with 2(p − 1 − s) + (v − 1)p forwards."
        )
    return (
        "Legal, but some stage waits longer than it must: compare the number of forwards before the first "
        "backward."
    )


def _held(case: Case, peaks: list[float]) -> str:
    if case.kind == "gpipe":
        return "GPipe runs every forward before the first backward, so each stage holds all micro-batches."
    if case.kind == "1f1b" and all(peak == min(case.microbatches, case.stages) for peak in peaks):
        return (
            "Every stage holds as much as the first. Stage s needs only p − s: its warm-up is p − 1 − s "
            "forwards."
        )
    if max(peaks) < min(case.microbatches, case.stages):
        return (
            "Too few: the pipeline isn't filled before the first backward. Run the warm-up's forwards first."
        )
    if all(peak == case.microbatches for peak in peaks):
        return (
            "Every stage holds all micro-batches, as under GPipe: start backwards as soon as the first can "
            "come."
        )
    return "A backward frees what its forward stored: run it as soon as its turn comes, not later."
