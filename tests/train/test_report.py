"""The numbers of a step in metrics.jsonl and TensorBoard are those of its spans, tokens and FLOPs."""

import json
from pathlib import Path

import pytest
from launching import train_on, write_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pdtlib.engine.training.run_dir import read_job
from pdtlib.observe.diagnosis import slowest
from pdtlib.observe.shares import read_perfetto
from pdtlib.plan.flops import model_flops_per_step
from pdtlib.plan.step_shares import steps_of

CHANGES = ("train.steps=4", "parallel.dp=1", "parallel.pp=2", "parallel.tp=2", "model.heads=4",
           "model.hidden=32", "model.ffn=52", "model.kv_heads=2",
           'train.recompute="full"')  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    train_on(4, write_job(folder), folder / "out", changes=CHANGES)
    return folder / "out"


def lines_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_mfu_is_model_flops_over_time_and_the_peak_of_all_ranks(run: Path) -> None:
    job, machine = read_job(run), json.loads((run / "machine.json").read_text())
    assert machine["world_size"] == 4
    for line in lines_of(run):
        wanted = model_flops_per_step(job) / line["time_s"] / (4 * machine["peak_flops_per_s_per_rank"])
        assert line["mfu"] == pytest.approx(wanted, rel=1e-9)
        assert 1.2 < line["hfu"] / line["mfu"] < 4 / 3, "layers are computed twice, logits are not"


def test_shares_are_those_of_the_spans(run: Path) -> None:
    steps, lines = steps_of(read_perfetto(run / "trace.json")[0]), lines_of(run)
    assert len(steps) == len(lines) == 4
    for step, line in zip(steps, lines, strict=True):
        assert line["bubble_share"] == pytest.approx(step.bubble_s / line["time_s"], abs=1e-3)
        assert line["comm_share"] == pytest.approx(step.communication_s / line["time_s"], abs=1e-3)
        assert line["data_share"] == pytest.approx(step.data_s / line["time_s"], abs=1e-3)
        assert line["data_share"] == pytest.approx(step.data_s / line["time_s"], rel=0.01, abs=1e-4)
        assert line["bubble_share"] > 0 < line["comm_share"]


def test_the_slowest_rank_is_named_a_step_later(run: Path) -> None:
    steps = {rank: steps_of(spans) for rank, spans in read_perfetto(run / "trace.json").items()}
    first, *later = lines_of(run)
    assert first["slowest_rank"] is None
    assert first["slowest_times"] is None
    for number, line in enumerate(later):
        at = {rank: one[number] for rank, one in steps.items()}
        work = {rank: one.step_s - one.bubble_s - one.communication_s for rank, one in at.items()}
        wanted = slowest(work)
        assert line["slowest_times"] == pytest.approx(wanted.times, rel=0.1)
        near = max(work.values()) < 1.02 * sorted(work.values())[-2]
        assert near or line["slowest_rank"] == wanted.rank


def test_tensorboard_shows_tokens_per_second(run: Path) -> None:
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    shown = [event.value for event in board.Scalars("tokens_per_s")]
    assert shown == pytest.approx([line["tokens"] / line["time_s"] for line in lines_of(run)], rel=1e-5)
