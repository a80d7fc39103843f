"""Every schedule by its name."""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument, at_least
from pdtlib.plan.schedule.actions import Layout, Schedule
from pdtlib.plan.schedule.automatic import zb_auto
from pdtlib.plan.schedule.dualpipe import dualpipe
from pdtlib.plan.schedule.interleaved import interleaved
from pdtlib.plan.schedule.one_chunk import article, gpipe, naive, one_f_one_b
from pdtlib.plan.schedule.replay import Costs
from pdtlib.plan.schedule.zb_v import zb_v
from pdtlib.plan.schedule.zero_bubble import zb_h1, zb_h2


@dataclass(frozen=True, kw_only=True)
class Family:
    """What is fixed about a schedule: its layout, and how many chunks it takes (None: any number from 1)."""

    title: str
    layout: str = "loop"
    chunks: int | None = 1
    splits_backward: bool = False


FAMILIES = {
    "naive": Family(title="One micro-batch at a time"),
    "gpipe": Family(title="GPipe"),
    "1f1b": Family(title="1F1B"),
    "interleaved": Family(title="Interleaved 1F1B", chunks=None),
    "zb-h1": Family(title="ZB-H1", splits_backward=True),
    "zb-h2": Family(title="ZB-H2", splits_backward=True),
    "zb-auto": Family(title="Zero bubble, made to measure", splits_backward=True),
    "zb-v": Family(title="ZB-V", layout="vee", chunks=2, splits_backward=True),
    "dualpipe": Family(title="DualPipe", layout="two-way", chunks=2, splits_backward=True),
    "article": Family(title="The order that the article prints"),
}
NAMES = tuple(FAMILIES)


def build(
    name: str,
    *,
    stages: int,
    microbatches: int,
    chunks: int | None = None,
    costs: Costs | None = None,
) -> Schedule:
    """The table of schedule ``name``; any number of micro-batches from 1.

    ``chunks`` is a choice for "interleaved" alone (2 by default). ``costs`` shape "zb-auto" alone; its memory
    cap is an argument of :func:`~pdtlib.plan.schedule.automatic.zb_auto`.

    Raises ValueError, with the valid values, for an unknown name, a count below 1, a number of chunks that
    the schedule doesn't have, or an odd number of stages for "dualpipe".
    """
    if name not in FAMILIES:
        raise BadArgument("schedule", name, valid=NAMES)
    family = FAMILIES[name]
    if chunks is None:
        chunks = family.chunks or 2
    if family.chunks is not None and chunks != family.chunks:
        raise BadArgument("chunks", chunks, f"{name} has {family.chunks} a stage", (family.chunks,))
    layout = Layout(kind=family.layout, stages=stages, chunks=chunks)
    at_least("microbatches", microbatches, 1)
    if name == "zb-auto":
        return zb_auto(stages, microbatches, costs=costs)
    overlapped: frozenset[tuple[int, int]] = frozenset()
    if name == "dualpipe":
        programs, overlapped = dualpipe(stages, microbatches)
    elif name == "interleaved":
        programs = interleaved(stages, microbatches, chunks=chunks)
    else:
        programs = _PLAIN[name](stages, microbatches)
    return Schedule(
        name=name, layout=layout, microbatches=microbatches, programs=tuple(programs), overlapped=overlapped
    )


_PLAIN = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "article": article,
}
