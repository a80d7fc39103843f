"""What a pipeline rank does, as data: actions, programs, and where each part of the model lives.

A schedule is one program per rank: a tuple of actions in the order in which the rank runs them. It says
nothing about time; the simulator does. Words used here: a *rank* is one of the ``stages`` processes of the
pipeline; the part of the model that it holds is its stage, cut into ``chunks``; a *position* is a chunk's
place in the model, so that a micro-batch passes positions 0, 1, 2, ... forwards and the same backwards.

The text of an action follows torch.distributed.pipelining's form, without the rank: ``F0``, ``B0``, ``W0``,
and ``@c`` for chunk c > 0. ``B`` is the whole backward, or only its input-gradient half where the rank's
program has the matching ``W`` (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pdtlib.plan.arguments import BadArgument, at_least

COMPUTE = ("F", "B", "W")
MESSAGES = ("SF", "RF", "SB", "RB")  # send and receive an activation (F) or its gradient (B)
LAYOUTS = ("loop", "vee", "two-way")

_ACT = re.compile(r"(F|B|W|SF|RF|SB|RB)(\d+)(?:@(\d+))?")


class Act(NamedTuple):
    """One action: ``op`` on micro-batch ``micro_batch`` with the rank's chunk ``chunk``."""

    op: str
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.op}{self.micro_batch}" + (f"@{self.chunk}" if self.chunk else "")

    @classmethod
    def parse(cls, text: str) -> Act:
        """The action that ``text`` names.

        >>> Act.parse("W3@1")
        Act(op='W', micro_batch=3, chunk=1)

        Raises ValueError when it names none.
        """
        match = _ACT.fullmatch(text.strip())
        if match is None:
            message = "an operation, a micro-batch and, if it isn't 0, @ and a chunk, as in W3@1"
            raise BadArgument("action", text, message, (*COMPUTE, *MESSAGES))
        op, micro_batch, chunk = match.groups()
        return cls(op, int(micro_batch), int(chunk or 0))


Program = tuple[Act, ...]
Place = tuple[int, int]  # (rank, chunk)


def deferred_in(program: Program) -> frozenset[tuple[int, int]]:
    """The (micro-batch, chunk) whose weight gradient is an action ``W`` of its own."""
    return frozenset((act.micro_batch, act.chunk) for act in program if act.op == "W")


def completing(program: Program) -> list[Act]:
    """The actions with which a micro-batch's weight gradients of a chunk are complete, in their order.

    >>> [str(act) for act in completing(tuple(map(Act.parse, ("F0", "F1", "B0", "B1", "W1"))))]
    ['B0', 'W1']
    """
    deferred = deferred_in(program)
    last = ("W" if (act.micro_batch, act.chunk) in deferred else "B" for act in program)
    return [act for act, op in zip(program, last, strict=True) if act.op == op]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which rank holds which position of the model.

    * ``loop``: position = chunk x stages + rank, round and round (Narayanan et al. 2021, section 2.2); with
      one chunk it is the plain pipeline.
    * ``vee``: down the ranks with one chunk and back up with the next, so that the last rank's two chunks are
      neighbours (Qi et al. 2023, section 6).
    * ``two-way``: two copies of the model; chunk 0 runs from rank 0 down, chunk 1 from the last rank up, and
      each copy takes half of the micro-batches (DeepSeek-V3, arXiv 2412.19437, section 3.2.1).
    """

    kind: str = "loop"
    stages: int
    chunks: int = 1

    def __post_init__(self) -> None:
        if self.kind not in LAYOUTS:
            raise BadArgument("layout", self.kind, valid=LAYOUTS)
        at_least("stages", self.stages, 1)
        at_least("chunks", self.chunks, 1)
        if self.kind == "two-way" and self.chunks != 2:
            raise BadArgument("chunks", self.chunks, "a two-way pipeline has two copies of each stage", (2,))

    @property
    def length(self) -> int:
        """Positions that a micro-batch passes: the number of pieces the model is cut into."""
        return self.stages if self.kind == "two-way" else self.stages * self.chunks

    @property
    def copies(self) -> int:
        """How often each parameter is held: 2 in a two-way pipeline, else 1."""
        return 2 if self.kind == "two-way" else 1

    def position(self, rank: int, chunk: int) -> int:
        """The place in the model of what ``rank`` holds as its ``chunk``."""
        turned = self.kind != "loop" and chunk % 2 == 1
        along = self.stages - 1 - rank if turned else rank
        return along if self.kind == "two-way" else chunk * self.stages + along

    def after(self, rank: int, chunk: int) -> Place | None:
        """Where the output of this chunk goes; None behind the last position."""
        return self._step(rank, chunk, 1)

    def before(self, rank: int, chunk: int) -> Place | None:
        """Where the input of this chunk comes from; None at the first position."""
        return self._step(rank, chunk, -1)

    def _step(self, rank: int, chunk: int, by: int) -> Place | None:
        position = self.position(rank, chunk) + by
        if not 0 <= position < self.length:
            return None
        if self.kind == "two-way":
            return (position if chunk == 0 else self.stages - 1 - position), chunk
        new_chunk, along = divmod(position, self.stages)
        turned = self.kind == "vee" and new_chunk % 2 == 1
        return (self.stages - 1 - along if turned else along), new_chunk

    def micro_batches(self, chunk: int, microbatches: int) -> range:
        """The micro-batches that pass a rank's chunk: all, or one direction's half of them."""
        if self.kind != "two-way":
            return range(microbatches)
        first_half = (microbatches + 1) // 2
        return range(first_half) if chunk == 0 else range(first_half, microbatches)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A table: one program per rank.

    ``overlapped`` holds (rank, index) of each forward that the schedule means to run *at the same time* as
    the backward behind it, as DualPipe does to hide communication. Whoever can't do that runs the two one
    after the other.
    """

    name: str
    layout: Layout
    microbatches: int
    programs: tuple[Program, ...]
    overlapped: frozenset[tuple[int, int]] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        at_least("microbatches", self.microbatches, 1)
        if len(self.programs) != self.layout.stages:
            raise BadArgument("programs", len(self.programs), "one per stage", (self.layout.stages,))

    @property
    def stages(self) -> int:
        return self.layout.stages

    @property
    def chunks(self) -> int:
        return self.layout.chunks

    @cached_property
    def deferred(self) -> tuple[frozenset[tuple[int, int]], ...]:
        """:func:`deferred_in` of each rank's program."""
        return tuple(map(deferred_in, self.programs))

    @property
    def splits_backward(self) -> bool:
        """Whether any backward leaves its weight-gradient half for later."""
        return any(self.deferred)
