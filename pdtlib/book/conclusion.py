"""Every strategy of the book on one job: what a GPU then holds and sends, and over which link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from pdtlib.plan import flops, presets
from pdtlib.plan.comm import Message
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.memory import stage_memory

MODEL = "llama2-70b"
DEGREE = 8
GLOBAL_BATCH = 64
MFU = 0.5
NETWORK = presets.LINKS["ib-hdr-200"]
A100 = presets.GPUS["A100-SXM4-80"]
ANYWHERE = 0.02
"""What takes less of the computation than this needs no fast link."""

CUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # Name: what it cuts, its [parallel] and [train].
    "data parallelism": ("the batch", {"dp": DEGREE}, {"zero_stage": 0}),
    "ZeRO-1": ("the optimizer state too", {"dp": DEGREE}, {"zero_stage": 1}),
    "ZeRO-2": ("gradients too", {"dp": DEGREE}, {"zero_stage": 2}),
    "ZeRO-3": ("parameters too", {"dp": DEGREE}, {"zero_stage": 3}),
    "tensor, with sequence": ("every layer", {"tp": DEGREE}, {"sequence_parallel": True}),
    "pipeline": ("between layers", {"pp": DEGREE}, {}),
    "context (ring)": ("the sequence", {"cp": DEGREE}, {}),
}


@dataclass(frozen=True)
class Strategy:
    """One strategy, alone, on eight GPUs: bytes on the fullest, and messages of the rank that sends most.

    ``sent_bytes`` are a step's. ``network_s`` is how long they take over one network card a GPU, beside
    ``compute_s`` of arithmetic at half of peak.
    """

    name: str
    cuts: str
    state_bytes: float
    activation_bytes: float
    num_messages: int
    sent_bytes: float
    network_s: float
    compute_s: float

    @property
    def where(self) -> str:
        """Where it belongs: what takes longer than computing must not leave NVLink."""
        if self.network_s > self.compute_s:
            return "inside a node"
        return "anywhere" if self.network_s < ANYWHERE * self.compute_s else "between nodes, hidden"


@cache
def job_of(name: str) -> Job:
    """The 70B job with one strategy at degree eight, or on one GPU where the name is empty."""
    _, parallel, train = CUTS[name] if name else ("", {}, {})
    return from_dict(
        {
            "model": {"preset": MODEL},
            "train": {"global_batch": GLOBAL_BATCH, "micro_batch": 1, **train},
            "parallel": {"dp": 1, **parallel},
            "hardware": {"cluster": "dgx-a100", "n_gpus": DEGREE if name else 1},
        }
    )


@cache
def strategies() -> tuple[Strategy, ...]:
    """All of them, in the order of the chapters."""
    return tuple(_strategy(name) for name in CUTS)


def _sent_bytes(rows: tuple[Message, ...]) -> float:
    return sum(row.sent_bytes_per_rank for row in rows)


def _strategy(name: str) -> Strategy:
    job = job_of(name)
    held = max((stage_memory(job, stage) for stage in range(job.parallel.pp)), key=lambda stage: stage.total)
    ledgers = [messages(job, stage) for stage in range(job.parallel.pp)]
    rows = max(ledgers, key=_sent_bytes)  # an inner stage sends both ways
    sent = _sent_bytes(rows)
    work = flops.model_flops_per_step(job)
    return Strategy(
        name=name,
        cuts=CUTS[name][0],
        state_bytes=held.params + held.grads + held.optimizer,
        activation_bytes=held.activations,
        num_messages=sum(row.count for row in rows),
        sent_bytes=sent,
        network_s=sent / NETWORK,
        compute_s=flops.training_seconds(work, num_gpus=DEGREE, peak_flops=A100.peak_flops, mfu=MFU),
    )
