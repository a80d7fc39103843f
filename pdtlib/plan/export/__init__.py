"""Hand a job to the engine that a team already uses: DeepSpeed, Megatron-LM or torchtitan.

Each target has rules of its own. A job that it cannot express is refused with the field and the reason.
"""

from pdtlib.plan.export.common import Export
from pdtlib.plan.export.deepspeed import to_deepspeed
from pdtlib.plan.export.megatron import to_megatron
from pdtlib.plan.export.torchtitan import to_torchtitan
from pdtlib.plan.spec import Job

TARGETS = {"deepspeed": to_deepspeed, "megatron": to_megatron, "torchtitan": to_torchtitan}

__all__ = ["TARGETS", "Export", "export"]


def export(job: Job, *, to: str) -> Export:
    """The files that ``to`` reads. Raises ``JobError`` for a job that it cannot express."""
    if to not in TARGETS:
        raise ValueError(f"to={to!r}; valid: {', '.join(TARGETS)}")
    return TARGETS[to](job)
