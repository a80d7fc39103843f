"""The accounting of model states as a control, and what a job says for it."""

from __future__ import annotations

from pdtlib.explore.controls import Choice
from pdtlib.figures.words import say
from pdtlib.plan import states
from pdtlib.plan.job import Job

ACCOUNTINGS: dict[str, dict[str, str]] = {
    "no-master-12": {"precision": "bf16"},
    "zero-16": {"precision": "bf16"},
    "megatron-18": {"precision": "bf16", "grad_precision": "fp32"},
    "megatron-fp16-20": {"precision": "fp16"},
    "fp32-16": {"precision": "fp32"},
}
"""Fields of ``[train]`` that come nearest to each of :data:`pdtlib.plan.states.ACCOUNTINGS`."""


def accounting_control(*, group: str = "") -> Choice:
    """A choice of accounting, in the words of those who use it."""
    options = tuple((name, say(f"accounting.{name}")) for name in states.ACCOUNTINGS)
    return Choice(
        name="accounting", label=say("accounting.label"), default="zero-16", group=group, options=options
    )


def accounting_of(job: Job) -> str:
    """The accounting of a job's precision."""
    if job.train.precision == "fp32":
        return "fp32-16"
    return "megatron-18" if job.train.grad_precision == "fp32" else "zero-16"
