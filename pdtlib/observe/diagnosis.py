"""Why a step takes longer than it should: the likely causes in a run's trace, worst first.

Each cause has a sign in the trace that the others lack, and a cost, the share of the step that would be won
without it:

    straggler              one rank is at work longer than the others, which wait for it
    bubble                 stages wait for each other
    no overlap             gradients travel, but nothing is computed meanwhile
    data stall             the batch is not there in time
    TP across nodes        tensor-parallel messages are slow and a group is larger than a node
    tiny buckets           gradients travel in many small messages, whose start costs more than their bytes
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdtlib.observe.shares import read_perfetto
from pdtlib.plan.job import Job, load
from pdtlib.plan.step_shares import Shares, steps_of, typical
from pdtlib.plan.units import bytes_text, percent_text

WORTH = 0.05
"""A cause that costs less of the step than this is not told."""

SLOWER = 1.2
"""A straggler is at work so many times as long as the median rank."""

HIDDEN = 0.25
"""Gradients of which less than this share is hidden do not overlap."""

SMALL_BYTES = 2**18
MANY_MESSAGES = 8


@dataclass(frozen=True, kw_only=True)
class Cause:
    """``cost`` is a share of the step."""

    cause: str
    cost: float
    evidence: str
    fix: str


def diagnose(run_dir: Path) -> list[Cause]:
    """The likely causes of lost time in the run that ``run_dir`` holds, the most expensive first.

    Raises ``ValueError`` for a directory without trace, ledger or job.
    """
    ranks = {
        rank: typical(steps)
        for rank, spans in read_perfetto(run_dir / "trace.json").items()
        if (steps := steps_of(spans))
    }
    if not ranks:
        raise ValueError(f"{run_dir / 'trace.json'} has no steps")
    job = load(run_dir / "job.json")
    try:
        ledger = json.loads((run_dir / "ledger.json").read_text(encoding="utf-8"))
        rows = max((one["comm"] for one in ledger["ranks"]), key=len)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{run_dir / 'ledger.json'} is no ledger: {error}") from error
    found = [*_straggler(ranks), *_bubble(ranks, job), *_data(ranks)]
    found += [*_tensor_parallel(ranks, job), *_gradients(ranks, rows)]
    return sorted((one for one in found if one.cost >= WORTH), key=lambda one: -one.cost)


@dataclass(frozen=True)
class Slowest:
    """The rank that is at work longest, its seconds of work, and the median of the others' seconds."""

    rank: int
    work_s: float
    others_s: float

    @property
    def times(self) -> float:
        """How many times as long as the others it works."""
        return self.work_s / self.others_s


def slowest(work_s: Mapping[int, float]) -> Slowest:
    """Compare the seconds of work of two ranks or more.

    >>> slowest({0: 2.0, 1: 5.0, 2: 2.0, 3: 3.0})
    Slowest(rank=1, work_s=5.0, others_s=2.0)
    """
    rank = max(work_s, key=lambda rank: work_s[rank])
    return Slowest(rank, work_s[rank], statistics.median(work_s[other] for other in work_s if other != rank))


def _straggler(ranks: Mapping[int, Shares]) -> Iterator[Cause]:
    """The rank that does not wait while the others do; its time goes into passes or between them.

    Where it goes into making the batch, that is the cause and not the rank.
    """
    work = {rank: one.compute_s + one.other_s for rank, one in ranks.items()}
    if len(work) < 2:
        return
    found = slowest(work)
    if found.work_s < SLOWER * found.others_s:
        return
    yield Cause(
        cause="straggler",
        cost=(found.work_s - found.others_s) / ranks[found.rank].step_s,
        evidence=f"rank {found.rank} is at work {found.times:.1f} times as long as the median of the others",
        fix=f"look at rank {found.rank}'s machine (clocks, temperature, other processes), or leave it out",
    )


def _bubble(ranks: Mapping[int, Shares], job: Job) -> Iterator[Cause]:
    share = statistics.mean(one.bubble_s / one.step_s for one in ranks.values())
    pp, micro_batches = job.parallel.pp, job.gradient_accumulation
    if pp > 1:
        yield Cause(
            cause="bubble",
            cost=share,
            evidence=f"stages wait {percent_text(share)} of a step for each other; "
            f"{pp} stages share {micro_batches} micro-batches",
            fix="more micro-batches (a smaller micro_batch, a larger global_batch), an interleaved schedule "
            "or a zero-bubble one",
        )


def _data(ranks: Mapping[int, Shares]) -> Iterator[Cause]:
    share = max(one.data_s / one.step_s for one in ranks.values())
    yield Cause(
        cause="data stall",
        cost=share,
        evidence=f"making the batch takes {percent_text(share)} of a step",
        fix="load ahead in processes of their own, tokenise beforehand, keep the data on a local disk",
    )


def _tensor_parallel(ranks: Mapping[int, Shares], job: Job) -> Iterator[Cause]:
    per_node = job.hardware.gpus_per_node or 8
    if job.parallel.tp <= per_node:
        return
    share = statistics.mean(one.exposed_s.get("tp", 0.0) / one.step_s for one in ranks.values())
    yield Cause(
        cause="TP across nodes",
        cost=share,
        evidence=f"tensor parallelism waits {percent_text(share)} of a step, and its {job.parallel.tp} ranks "
        f"lie on nodes of {per_node}",
        fix=f"tp={per_node} at most, and pipeline stages or ZeRO across nodes",
    )


def _gradients(ranks: Mapping[int, Shares], rows: list[dict[str, Any]]) -> Iterator[Cause]:
    """Exposed gradients: too small a bucket, or no overlap. A straggler's victims wait too, so the rank that
    waits least is looked at."""
    one = min(ranks.values(), key=lambda rank: rank.exposed_s.get("dp", 0.0))
    exposed, flying = one.exposed_s.get("dp", 0.0), one.in_flight_s.get("dp", 0.0)
    share = exposed / one.step_s
    grads = [row for row in rows if row["axis"] == "dp" and row["phase"] == "grads"]
    count = sum(row["count"] for row in grads)
    if not count or not flying:
        return
    mean_bytes = sum(row["count"] * row["message_bytes"] for row in grads) / count
    if count >= MANY_MESSAGES and mean_bytes < SMALL_BYTES:
        yield Cause(
            cause="tiny buckets",
            cost=share,
            evidence=f"{count} gradient messages a step of {bytes_text(mean_bytes)} each, "
            f"{percent_text(share)} of a step exposed",
            fix="buckets of 25 MB or more, so that bandwidth and not latency counts",
        )
    elif exposed > (1 - HIDDEN) * flying:
        yield Cause(
            cause="no overlap",
            cost=share,
            evidence=f"{percent_text(exposed / flying)} of the time of gradient messages is exposed, "
            f"{percent_text(share)} of a step",
            fix="start each bucket's reduction during the backward pass, and use several buckets",
        )
