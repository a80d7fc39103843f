"""A run beside its prediction: every quantity that both know, with its error."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.kept import most_kept
from pdtlib.plan.ledger import messages
from pdtlib.plan.memory import stage_memory
from pdtlib.plan.predict import predict
from pdtlib.plan.whole import whole_bytes


class NoRun(ValueError):
    """A directory that does not hold what a finished run leaves behind."""


def compare(run_dir: Path) -> list[dict[str, Any]]:
    """Rows {quantity, predicted, measured, error}; the error is relative to the prediction.

    Bytes and counts are per rank: those of the rank that is furthest from its own prediction, and the largest
    among ranks that are equally near. Where the job has pipeline stages, every stage has rows of its own,
    such as ``stage1.memory.params``. Activations are what autograd and split backward passes kept, the loss's
    logits included, predicted by the table that the rank ran; buffers are the whole parameters and gradients
    that ZeRO holds for a moment. ``pdt predict`` has the papers' closed forms for chunks in flight, and adds
    what no meter of the run sees, a layer while it is recomputed and the logits before they are turned into
    fp32. Raises :class:`NoRun` for a directory without a run.
    """
    job = from_dict(_read(run_dir / "job.json"))
    memory, ledger = _read(run_dir / "memory.json"), _read(run_dir / "ledger.json")
    metrics = _read_lines(run_dir / "metrics.jsonl")
    predicted = predict(job)
    try:
        pairs = [
            ("params.total", predicted["params"]["total"], memory["params_total"]),
            *_rows(job, memory["ranks"], _memory),
            *_rows(job, ledger["ranks"], _comm),
            *_steps(job, predicted, metrics),
        ]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        message = f"{run_dir} does not hold what pdt run writes: {type(error).__name__}: {error}"
        raise NoRun(message) from error
    return [
        {"quantity": name, "predicted": expected, "measured": found, "error": relative_error(expected, found)}
        for name, expected, found in pairs
    ]


def relative_error(predicted: float, measured: float) -> float | None:
    """(measured - predicted) / predicted; None where nothing was predicted and something was found.

    >>> relative_error(200, 210), relative_error(0, 0), relative_error(0, 3)
    (0.05, 0.0, None)
    """
    if predicted == measured:
        return 0.0
    return (measured - predicted) / predicted if predicted else None


Pair = tuple[float, float]


def _rows(
    job: Job, ranks: list[dict[str, Any]], pairs_of: Callable[[Job, dict[str, Any]], dict[str, Pair]]
) -> Iterator[tuple[str, float, float]]:
    """The quantities of ``pairs_of`` (name -> predicted, measured), of one rank for every stage."""
    if len(ranks) != job.parallel.world_size:
        raise ValueError(f"{len(ranks)} ranks, but the job has {job.parallel.world_size}")
    found: dict[str, list[Pair]] = {}
    for stage in range(job.parallel.pp):
        for rank in ranks:
            if rank["place"]["pp"] == stage:
                for name, pair in pairs_of(job, rank).items():
                    where = f"stage{stage}.{name}" if job.parallel.pp > 1 else name
                    found.setdefault(where, []).append(pair)
    for name, pairs in found.items():
        yield (name, *max(pairs, key=_distance))


def _distance(pair: Pair) -> tuple[float, float]:
    error = relative_error(*pair)
    return math.inf if error is None else abs(error), pair[1]


def _memory(job: Job, rank: dict[str, Any]) -> dict[str, Pair]:
    stage = rank["place"]["pp"]
    planned = stage_memory(job, stage)
    expected = {
        "params": planned.params,
        "grads": planned.grads,
        "optimizer": planned.optimizer,
        "activations": most_kept(job, stage),
        "buffers": whole_bytes(job, stage),
    }
    expected["total"] = sum(expected.values())
    return {f"memory.{name}": (value, rank[name]) for name, value in expected.items()}


def _comm(job: Job, rank: dict[str, Any]) -> dict[str, Pair]:
    place = rank["place"]
    data_rank = place["dp"] * job.parallel.cp + place["cp"]
    planned = messages(job, place["pp"], data_rank)
    expected, found = _by_kind([message.row() for message in planned]), _by_kind(rank["comm"])
    pairs: dict[str, Pair] = {}
    for kind in dict.fromkeys([*expected, *found]):
        calls, sent = expected.get(kind, (0, 0.0))
        calls_found, sent_found = found.get(kind, (0, 0.0))
        pairs[f"comm.{kind}.count"] = calls, calls_found
        pairs[f"comm.{kind}.sent_bytes_per_rank"] = sent, sent_found
    return pairs


def _by_kind(rows: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """Axis, collective and phase -> calls and bytes sent, over all message sizes."""
    found: dict[str, tuple[int, float]] = {}
    for row in rows:
        kind = f"{row['axis']}.{row['collective']}.{row['phase']}"
        calls, sent = found.get(kind, (0, 0.0))
        found[kind] = (calls + row["count"], sent + row["sent_bytes_per_rank"])
    return found


def _steps(
    job: Job, predicted: dict[str, Any], metrics: list[dict[str, Any]]
) -> Iterator[tuple[str, float, float]]:
    """Medians over the steps; times leave out the first, in which memory is measured."""
    yield "tokens_per_step", job.train.global_batch * job.model.seq, _median(metrics, "tokens")
    if "time" in predicted and len(metrics) > 1:
        yield "time.step_s", predicted["time"]["step_s"], _median(metrics[1:], "time_s")
        yield "throughput.mfu", predicted["throughput"]["mfu"], _median(metrics[1:], "mfu")


def _median(metrics: list[dict[str, Any]], name: str) -> float:
    return statistics.median(line[name] for line in metrics)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoRun(f"{path.parent} holds no finished run: {path.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NoRun(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise NoRun(f"{path} is damaged: it holds no table")
    return found


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError, RecursionError) as error:
        raise NoRun(f"{path} cannot be read: {error}") from error
    if not found:
        raise NoRun(f"{path} holds no step")
    return found
