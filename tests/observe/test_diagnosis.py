"""Where a step's time goes, and what is wrong with six prepared traces."""

import json
import random
from pathlib import Path

import pytest

from pdtlib.observe.diagnosis import diagnose
from pdtlib.observe.shares import read_perfetto
from pdtlib.observe.trace import Span, write_perfetto
from pdtlib.plan.intervals import length, union, without
from pdtlib.plan.job import from_dict, to_json
from pdtlib.plan.step_shares import shares, steps_of, typical

MODEL = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32}


def prepared(folder: Path, spans, *, parallel, comm=(), per_node: int = 8, micro_batches: int = 4) -> Path:  # type: ignore[no-untyped-def]
    """A run directory of which ``spans(rank)`` gives one second-long step, as (lane, name, start, end)."""
    dp = parallel.get("dp", 1)
    job = from_dict(
        {
            "model": MODEL,
            "train": {"global_batch": dp * micro_batches, "micro_batch": 1},
            "parallel": parallel,
            "hardware": {"gpu": "H100-SXM5", "gpus_per_node": per_node},
        }
    )
    world = job.parallel.world_size
    ranks = {}
    for rank in range(world):
        ranks[rank] = [
            Span(lane, name, start + step, end + step)
            for step in range(4)
            for lane, name, start, end in [("step", "step", 0.0, 1.0), *spans(rank)]
        ]
    write_perfetto(folder / "trace.json", ranks=ranks)
    (folder / "job.json").write_text(to_json(job))
    ledger = {"ranks": [{"rank": rank, "comm": list(comm)} for rank in range(world)]}
    (folder / "ledger.json").write_text(json.dumps(ledger))
    return folder


def grads(count: int, message_bytes: int) -> dict[str, object]:
    return {
        "axis": "dp", "collective": "all_reduce", "phase": "grads", "count": count,
        "message_bytes": message_bytes, "sent_bytes_per_rank": float(count * message_bytes),
    }  # fmt: skip


BIG = [grads(3, 25 * 2**20)]


def healthy(rank: int) -> list[tuple[str, str, float, float]]:
    """Gradients travel while the backward pass goes on; the last bucket alone shows."""
    return [
        ("data", "batch", 0.0, 0.005),
        ("compute", "forward", 0.005, 0.33),
        ("compute", "backward", 0.33, 0.95),
        ("communication dp", "grads all_reduce", 0.5, 0.97),
        ("wait dp", "grads all_reduce", 0.95, 0.97),
        ("optimizer", "step", 0.97, 0.999),
    ]


def straggling(rank: int) -> list[tuple[str, str, float, float]]:
    """Rank 2 computes for 0.95 s, the others for 0.6 s."""
    end = 0.95 if rank == 2 else 0.6
    return [
        ("compute", "forward", 0.0, end / 3),
        ("compute", "backward", end / 3, end),
        ("communication dp", "grads all_reduce", end / 2, 0.96),
        ("wait dp", "grads all_reduce", end, 0.96),
        ("optimizer", "step", 0.96, 1.0),
    ]


def bubbling(rank: int) -> list[tuple[str, str, float, float]]:
    """Four stages and few micro-batches."""
    at = 0.12 * rank
    return [
        ("wait pp", "forward recv", 0.0, at),
        ("compute", "F0", at, at + 0.2),
        ("wait pp", "backward recv", at + 0.2, 0.6),
        ("compute", "B0", 0.6, 0.98),
        ("optimizer", "step", 0.98, 1.0),
    ]


def unhidden(rank: int) -> list[tuple[str, str, float, float]]:
    """Gradients start when the backward pass is over."""
    return [
        ("compute", "forward", 0.0, 0.2),
        ("compute", "backward", 0.2, 0.6),
        ("communication dp", "grads all_reduce", 0.6, 0.95),
        ("wait dp", "grads all_reduce", 0.6, 0.95),
        ("optimizer", "step", 0.95, 1.0),
    ]


def starved(rank: int) -> list[tuple[str, str, float, float]]:
    """0.4 s for the batch on rank 0, on which the other waits."""
    data = 0.4 if rank == 0 else 0.05
    return [
        ("data", "batch", 0.0, data),
        ("compute", "forward", data, data + 0.18),
        ("compute", "backward", data + 0.18, data + 0.54),
        ("communication dp", "grads all_reduce", data + 0.3, 0.96),
        ("wait dp", "grads all_reduce", data + 0.54, 0.96),
        ("optimizer", "step", 0.96, 1.0),
    ]


def crossing(rank: int) -> list[tuple[str, str, float, float]]:
    """A tensor-parallel wait in each of four layers, inside the passes."""
    waits = [("wait tp", "forward all_reduce", 0.1 + 0.2 * layer, 0.22 + 0.2 * layer) for layer in range(4)]
    messages = [("communication tp", name, start, end) for _, name, start, end in waits]
    return [("compute", "forward", 0.0, 0.4), ("compute", "backward", 0.4, 0.98), *waits, *messages]


def crumbling(rank: int) -> list[tuple[str, str, float, float]]:
    """Forty small messages, one after the other, longer than the backward pass that should hide them."""
    messages = [
        ("communication dp", "grads all_reduce", 0.3 + 0.016 * number, 0.3 + 0.016 * (number + 1))
        for number in range(40)
    ]
    return [
        ("compute", "forward", 0.0, 0.25),
        ("compute", "backward", 0.25, 0.6),
        *messages,
        ("wait dp", "grads all_reduce", 0.6, 0.94),
        ("optimizer", "step", 0.94, 1.0),
    ]


PREPARED = [
    ("straggler", straggling, {"parallel": {"dp": 4}, "comm": BIG}, 0.35, "rank 2 is at work 1.5"),
    ("bubble", bubbling, {"parallel": {"pp": 4}, "micro_batches": 2}, 0.4, "4 stages share 2 micro-batches"),
    ("no overlap", unhidden, {"parallel": {"dp": 2}, "comm": BIG}, 0.35, "is exposed"),
    ("data stall", starved, {"parallel": {"dp": 2}, "comm": BIG}, 0.4, "making the batch takes 40"),
    ("TP across nodes", crossing, {"parallel": {"tp": 4}, "per_node": 2}, 0.48, "4 ranks lie on nodes of 2"),
    (
        "tiny buckets",
        crumbling,
        {"parallel": {"dp": 2}, "comm": [grads(40, 40_000)]},
        0.34,
        "40 gradient messages",
    ),
]


@pytest.mark.parametrize(
    ("cause", "spans", "run", "cost", "evidence"), PREPARED, ids=[case[0] for case in PREPARED]
)
def test_prepared_traces_are_diagnosed(cause, spans, run, cost, evidence, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first, *_ = diagnose(prepared(tmp_path, spans, **run))
    assert first.cause == cause
    assert first.cost == pytest.approx(cost, abs=0.07)
    assert evidence in first.evidence
    assert first.fix


@pytest.mark.parametrize(
    "run",
    [
        {"parallel": {"dp": 4}, "comm": BIG},
        {"parallel": {"dp": 2, "tp": 2}, "comm": BIG},
        {"parallel": {"dp": 2}, "comm": [grads(40, 40_000)]},  # small, but hidden
    ],
)
def test_a_healthy_trace_has_no_cause(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert diagnose(prepared(tmp_path, healthy, **run)) == []


def test_shares_add_up_whatever_the_spans() -> None:
    """Against an independent reading: every millisecond is asked for itself what it was."""
    random_ = random.Random(3)
    lanes = ["wait pp", "wait dp", "wait tp", "data", "compute", "optimizer", "communication dp"]
    for _ in range(50):
        spans = []
        for _ in range(random_.randrange(1, 25)):
            start = random_.randrange(-100, 1100)
            spans.append(Span(random_.choice(lanes), "x", start, start + random_.randrange(0, 300)))
        found = shares(spans, Span("step", "step", 0, 1000))
        counted = dict.fromkeys(["bubble", "exposed", "data", "compute", "other"], 0)
        for at in range(1000):
            here = {span.lane for span in spans if span.start_s <= at < span.end_s}
            if "wait pp" in here:
                counted["bubble"] += 1
            elif here & {"wait dp", "wait tp"}:
                counted["exposed"] += 1
            elif "data" in here:
                counted["data"] += 1
            elif here & {"compute", "optimizer"}:
                counted["compute"] += 1
            else:
                counted["other"] += 1
        assert counted == {
            "bubble": found.bubble_s,
            "exposed": found.communication_s,
            "data": found.data_s,
            "compute": found.compute_s,
            "other": found.other_s,
        }


def test_intervals() -> None:
    assert union([]) == []
    assert union([(1, 1), (2, 1)]) == []
    assert without([(0, 4), (6, 9)], [(1, 2), (3, 7)]) == [(0, 1), (2, 3), (7, 9)]
    assert length(without([(0, 4)], [(0, 4)])) == 0


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    spans = {rank: [Span(lane, name, a, b) for lane, name, a, b in healthy(rank)] for rank in (0, 1)}
    write_perfetto(tmp_path / "trace.json", ranks=spans)
    again = read_perfetto(tmp_path / "trace.json")
    assert set(again) == {0, 1}
    for rank, found in again.items():
        by_start = sorted(found, key=lambda span: (span.start_s, span.lane))
        for one, other in zip(by_start, sorted(spans[rank], key=lambda s: (s.start_s, s.lane)), strict=True):
            assert (one.lane, one.name) == (other.lane, other.name)
            assert one.start_s == pytest.approx(other.start_s)
            assert one.end_s == pytest.approx(other.end_s)


def test_the_first_step_does_not_count() -> None:
    spans = [Span("step", "step", 0, 50), Span("data", "batch", 0, 40)]
    spans += [Span("step", "step", 50 + step, 51 + step) for step in range(3)]
    spans += [Span("compute", "forward", 50 + step, 50.9 + step) for step in range(3)]
    found = typical(steps_of(spans))
    assert (found.step_s, found.data_s) == (1, 0)
    assert found.compute_s == pytest.approx(0.9)


@pytest.mark.parametrize("damage", ["missing", "empty", "foreign"])
def test_what_is_no_run_is_refused(damage: str, tmp_path: Path) -> None:
    prepared(tmp_path, healthy, parallel={"dp": 2}, comm=BIG)
    trace = tmp_path / "trace.json"
    if damage == "missing":
        trace.unlink()
    else:
        trace.write_text({"empty": "", "foreign": '{"traceEvents": [{"name": "x"}]}'}[damage])
    with pytest.raises(ValueError, match="is no trace that pdt run writes"):
        diagnose(tmp_path)
