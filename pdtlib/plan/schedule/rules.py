"""Which counts each framework accepts for a schedule: what runs here need not run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.schedule.catalog import FAMILIES, NAMES
from pdtlib.plan.spec import Problem

TARGETS = ("pdtlib", "megatron", "torch", "deepspeed")

# The names that a framework has for our schedules.
MEGATRON = {
    "1f1b": "forward_backward_pipelining_without_interleaving",
    "interleaved": "forward_backward_pipelining_with_interleaving",
}
TORCH = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
DEEPSPEED = {"1f1b": "TrainSchedule"}


def schedule_problems(
    name: str, *, stages: int, microbatches: int, chunks: int | None = None, target: str = "pdtlib"
) -> list[Problem]:
    """Why ``target`` refuses this schedule; an empty list if it takes it.

    * pdtlib: any number of micro-batches; "dualpipe" needs an even number of stages.
    * megatron (core, ``pipeline_parallel/schedules.py``): 1F1B with any number of micro-batches, interleaved
      with a multiple of the stages.
    * torch (``torch.distributed.pipelining``, 2.13): 1F1B with at least as many micro-batches as stages,
      interleaved with a multiple of its rounds, max(1, m // p); GPipe and ZB-V with any number.
    * deepspeed (``runtime/pipe/schedule.py``): 1F1B with any number of micro-batches.

    Raises ValueError for an unknown name or target.
    """
    if name not in FAMILIES:
        raise BadArgument("schedule", name, valid=NAMES)
    if target not in TARGETS:
        raise BadArgument("target", target, valid=TARGETS)
    chunks = FAMILIES[name].chunks or chunks or 2
    return list(_RULES[target](name, stages, microbatches, chunks))


def _pdtlib(name: str, stages: int, microbatches: int, chunks: int) -> Iterator[Problem]:
    if name == "dualpipe" and stages % 2:
        yield Problem(
            "stages",
            f"dualpipe pairs the stages, and {stages} is odd",
            _nearest(stages, lambda p: p % 2 == 0),
        )


def _megatron(name: str, stages: int, microbatches: int, chunks: int) -> Iterator[Problem]:
    if name not in MEGATRON:
        yield _unknown("Megatron-LM", name, MEGATRON)
    elif name == "interleaved" and chunks > 1 and microbatches % stages:
        message = (
            f"Megatron-LM interleaves rounds of {stages} micro-batches, and {microbatches} leaves a rest"
        )
        yield Problem("microbatches", message, _nearest(microbatches, lambda m: m % stages == 0))


def _torch(name: str, stages: int, microbatches: int, chunks: int) -> Iterator[Problem]:
    if name not in TORCH:
        yield _unknown("torch.distributed.pipelining", name, TORCH)
    elif name == "1f1b" and microbatches < stages:
        message = f"torch's 1F1B wants as many micro-batches as stages ({stages}), not {microbatches}"
        yield Problem("microbatches", message, (stages,))
    elif name == "interleaved":
        rounds = max(1, microbatches // stages)
        if microbatches % rounds:
            message = (
                f"torch cuts {microbatches} micro-batches into {rounds} equal rounds, which leaves a rest"
            )
            valid = _nearest(microbatches, lambda m: m % max(1, m // stages) == 0)
            yield Problem("microbatches", message, valid)


def _deepspeed(name: str, stages: int, microbatches: int, chunks: int) -> Iterator[Problem]:
    if name not in DEEPSPEED:
        yield _unknown("DeepSpeed", name, DEEPSPEED)


_RULES: dict[str, Callable[[str, int, int, int], Iterator[Problem]]] = {
    "pdtlib": _pdtlib,
    "megatron": _megatron,
    "torch": _torch,
    "deepspeed": _deepspeed,
}


def _unknown(target: str, name: str, known: dict[str, str]) -> Problem:
    return Problem("schedule", f"{target} has no {name} schedule", tuple(known))


def _nearest(value: int, fits: Callable[[int], bool]) -> tuple[int, ...]:
    """The nearest number below that fits, if any, and the nearest above, which every rule here has."""
    below = next((number for number in range(value - 1, 0, -1) if fits(number)), None)
    above = next(number for number in count(value + 1) if fits(number))
    return (above,) if below is None else (below, above)
