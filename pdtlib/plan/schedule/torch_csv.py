"""Tables in the form that torch.distributed.pipelining loads, one row per rank.

There an action is its stage, an operation and a micro-batch: ``3F0``; ``B`` is a whole backward, ``I`` the
input's half. What we call a position is torch's stage. torchtitan reads such a file by its
``pipeline_parallel_schedule_csv``.
"""

from __future__ import annotations

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.schedule.actions import Act, Schedule


def to_torch_csv(schedule: Schedule) -> str:
    """The computations of ``schedule``; torch adds the messages itself.

    >>> from pdtlib.plan.schedule import build
    >>> print(to_torch_csv(build("zb-h1", stages=2, microbatches=2)), end="")
    0F0,0F1,0I0,0W0,0I1,0W1
    1F0,1I0,1F1,1I1,1W0,1W1

    Raises ValueError for a two-way pipeline: torch knows one rank per stage.
    """
    if schedule.layout.copies > 1:
        raise BadArgument("layout", schedule.layout.kind, "torch holds each stage once", ("loop", "vee"))

    def cell(rank: int, act: Act) -> str:
        op = "I" if act.op == "B" and (act.micro_batch, act.chunk) in schedule.deferred[rank] else act.op
        return f"{schedule.layout.position(rank, act.chunk)}{op}{act.micro_batch}"

    return "".join(
        ",".join(cell(rank, act) for act in program) + "\n" for rank, program in enumerate(schedule.programs)
    )
