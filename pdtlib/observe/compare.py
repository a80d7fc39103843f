"""A run beside its prediction: every quantity that both know, with its error."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pdtlib.plan.flats import gathered_bytes
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.memory import recomputed_layer_bytes
from pdtlib.plan.predict import predict


class NoRun(ValueError):
    """A directory that does not hold what a finished run leaves behind."""


def compare(run_dir: Path) -> list[dict[str, Any]]:
    """Rows {quantity, predicted, measured, error}; the error is relative to the prediction.

    Bytes and counts are per rank, the largest of all ranks where they differ. Activations are what autograd
    kept, the loss's logits included; buffers are the whole parameters and gradients that ZeRO holds for a
    moment; ``pdt predict`` adds what no meter of the run sees, a layer while it is recomputed and the logits
    before they are turned into fp32. Raises :class:`NoRun` for a directory without a run.
    """
    job = from_dict(_read(run_dir / "job.json"))
    memory, ledger = _read(run_dir / "memory.json"), _read(run_dir / "ledger.json")
    metrics = _read_lines(run_dir / "metrics.jsonl")
    predicted = predict(job)
    try:
        pairs = [
            ("params.total", predicted["params"]["total"], memory["params_total"]),
            *_memory(job, predicted, memory),
            *_comm(predicted, ledger),
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


def _memory(
    job: Job, predicted: dict[str, Any], memory: dict[str, Any]
) -> Iterator[tuple[str, float, float]]:
    most = {name: max(rank[name] for rank in memory["ranks"]) for name in memory["ranks"][0]}
    stage = predicted["memory"]["stages"][0]
    kept = stage["activations"] + stage["logits"]
    if job.train.recompute == "full":
        kept -= recomputed_layer_bytes(job)
    expected = {
        **{name: stage[name] for name in ("params", "grads", "optimizer")},
        "activations": kept,
        "buffers": gathered_bytes(job),
    }
    for name, value in expected.items():
        yield f"memory.{name}", value, most[name]
    yield "memory.total", sum(expected.values()), most["total"]


def _comm(predicted: dict[str, Any], ledger: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    expected = _by_kind(predicted["comm"])
    per_rank = [_by_kind(rank["comm"]) for rank in ledger["ranks"]]
    kinds = dict.fromkeys([*expected, *(kind for rank in per_rank for kind in rank)])
    for kind in kinds:
        calls, sent = expected.get(kind, (0, 0.0))
        found = max(rank.get(kind, (0, 0.0)) for rank in per_rank)
        yield f"comm.{kind}.count", calls, found[0]
        yield f"comm.{kind}.sent_bytes_per_rank", sent, found[1]


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
