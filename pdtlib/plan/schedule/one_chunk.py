"""Schedules with one chunk a rank and the whole backward in one action."""

from __future__ import annotations

from pdtlib.plan.schedule.actions import Act, Program


def naive(stages: int, microbatches: int) -> list[Program]:
    """One micro-batch at a time, there and back: a stage works 1/stages of the time."""
    program = [Act(op, i) for i in range(microbatches) for op in "FB"]
    return [tuple(program)] * stages


def gpipe(stages: int, microbatches: int) -> list[Program]:
    """All forwards, then all backwards: every stage holds all ``microbatches`` activations.

    Huang et al. 2018 (arXiv 1811.06965), section 2.3. Backwards run in the order of the forwards.
    """
    program = [Act(op, i) for op in "FB" for i in range(microbatches)]
    return [tuple(program)] * stages


def one_f_one_b(stages: int, microbatches: int) -> list[Program]:
    """Stage s holds at most ``stages - s`` micro-batches' activations; the bubble is GPipe's.

    Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1 (PipeDream-Flush). The warm-up is never longer
    than there are micro-batches, so fewer micro-batches than stages work too.
    """

    def program(stage: int) -> Program:
        warmup = min(stages - 1 - stage, microbatches)
        steady = microbatches - warmup
        acts = [Act("F", i) for i in range(warmup)]
        for i in range(steady):
            acts += [Act("F", warmup + i), Act("B", i)]
        return tuple(acts + [Act("B", steady + i) for i in range(warmup)])

    return [program(stage) for stage in range(stages)]


def article(stages: int, microbatches: int) -> list[Program]:
    """The order that the article prints for 1F1B: it is legal, holds more, and takes longer.

    Every stage runs ``stages`` forwards first, then pairs (F5 B1, F6 B2, ...), then drains. The warm-up
    should shrink from stage to stage; since it doesn't, each pair waits for a round trip through the
    pipeline.
    """
    warmup = min(stages, microbatches)
    acts = [Act("F", i) for i in range(warmup)]
    for i in range(microbatches - warmup):
        acts += [Act("F", warmup + i), Act("B", i)]
    acts += [Act("B", i) for i in range(microbatches - warmup, microbatches)]
    return [tuple(acts)] * stages
