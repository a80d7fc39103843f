"""Runs on real text: one loss curve for every layout, the shares of ZeRO's Table 1, and all the files.

One run a layout; every test looks at the same runs.
"""

import json
import shutil
from pathlib import Path

import pytest
from launching import run, train_on, write_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pdtlib.engine.training.run_dir import FILES, checkpoint_path, read_metrics
from pdtlib.observe.compare import compare
from pdtlib.plan.job import load, replace
from pdtlib.plan.params import count
from pdtlib.plan.states import engine_accounting, zero_state_bytes

STEPS = 20
pytestmark = pytest.mark.timeout(900)  # the first test waits for all runs
LAYOUTS = [(1, 0), *((ranks, stage) for ranks in (2, 4) for stage in (0, 1, 2, 3))]


LAUNCHED = [(2, 0), (4, 3)]
"""Started with ``pdt run``; the others run the same loop on processes that are already warm."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    folder = tmp_path_factory.mktemp("runs")
    job = write_job(folder)
    found = {layout: folder / f"{layout[0]}-ranks-stage-{layout[1]}" for layout in LAYOUTS}
    for (ranks, stage), out in found.items():
        change = f"train.zero_stage={stage}"
        if (ranks, stage) not in LAUNCHED:
            train_on(ranks, job, out, steps=STEPS, changes=(change,))
            continue
        code, text, err = run("run", job, "--out", out, "--nproc", ranks, "--set", change, "--steps", STEPS)
        assert (code, err) == (0, "")
        assert f"step {STEPS}/{STEPS}" in text
    return found


def test_every_layout_has_the_same_losses(runs: dict[tuple[int, int], Path]) -> None:
    curves = {layout: [line["loss"] for line in read_metrics(out)] for layout, out in runs.items()}
    alone = curves[1, 0]
    assert len(alone) == STEPS
    for layout, losses in curves.items():
        assert losses == pytest.approx(alone, abs=1e-5), layout
    norms = {layout: [line["grad_norm"] for line in read_metrics(out)] for layout, out in runs.items()}
    for layout, found in norms.items():
        assert found == pytest.approx(norms[1, 0], rel=1e-4), layout


def test_the_loss_falls_on_real_text(runs: dict[tuple[int, int], Path]) -> None:
    losses = [line["loss"] for line in read_metrics(runs[1, 0])]
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # ln 256: nothing known of 256 bytes
    assert max(losses[-3:]) < losses[0] - 1.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_has_the_shares_of_table_1(runs: dict[tuple[int, int], Path], layout: tuple[int, int]) -> None:
    """Rajbhandari 2020, Table 1: (4+4+8) bytes in fp32, of which stage 1, 2, 3 shard 8, 12, 16.

    Padding adds at most one element a buffer to what an exact share would be.
    """
    ranks, stage = layout
    memory = json.loads((runs[layout] / "memory.json").read_text())
    params = count(load(runs[layout] / "job.json").model).total
    assert memory["params_total"] == params
    assert [rank["rank"] for rank in memory["ranks"]] == list(range(ranks))
    share = zero_state_bytes(params, dp=ranks, stage=stage, accounting=engine_accounting("fp32"))
    for rank in memory["ranks"]:
        for kind in ("params", "grads", "optimizer"):
            exact = getattr(share, kind)
            assert exact <= rank[kind] <= exact + 8 * 10, (kind, rank)
        assert rank["total"] == sum(rank[kind] for kind in rank if kind not in ("rank", "place", "total"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_states_and_messages_are_exactly_the_predicted_ones(
    runs: dict[tuple[int, int], Path], layout: tuple[int, int]
) -> None:
    rows = {row["quantity"]: row for row in compare(runs[layout])}
    exact = [name for name in rows if name.startswith("comm.")]
    exact += ["params.total", "memory.params", "memory.grads", "memory.optimizer", "tokens_per_step"]
    assert {name: rows[name]["error"] for name in exact} == dict.fromkeys(exact, 0.0)
    assert abs(rows["memory.activations"]["error"]) < 0.01
    if layout[1] < 3:  # with three layers or more stage 3 reaches the prediction too
        assert rows["memory.buffers"]["error"] == 0
    assert (layout[0] > 1) == any(name.startswith("comm.dp") for name in exact)
    ledger = json.loads((runs[layout] / "ledger.json").read_text())
    assert ledger["every_step_alike"]
    assert ledger["steps"] == STEPS
    assert [rank["rank"] for rank in ledger["ranks"]] == list(range(layout[0]))


@pytest.mark.parametrize("layout", [(1, 0), (4, 3)])
def test_the_run_directory_is_complete(runs: dict[tuple[int, int], Path], layout: tuple[int, int]) -> None:
    out, (ranks, stage) = runs[layout], layout
    assert {path.name for path in out.iterdir()} == set(FILES) - {"samples", "identity"}  # of elastic runs
    job = load(out.parent / "job.toml")
    assert load(out / "job.json") == replace(job, {"hardware.n_gpus": ranks, "train.zero_stage": stage})
    metrics = read_metrics(out)
    keys = ["step", "loss", "grad_norm", "tokens", "time_s", "mfu", "hfu"]
    keys += ["comm_share", "bubble_share", "data_share", "slowest_rank", "slowest_times"]
    assert all(list(line) == keys for line in metrics)
    assert [line["step"] for line in metrics] == list(range(STEPS))
    assert all(0 < line["mfu"] < 1 and 0 <= line["comm_share"] < 1 for line in metrics)
    assert all(line["bubble_share"] == 0 for line in metrics)
    assert any(line["comm_share"] > 0 for line in metrics) == (ranks > 1)
    assert checkpoint_path(out, STEPS).is_dir()
    machine = json.loads((out / "machine.json").read_text())
    assert machine["world_size"] == ranks
    assert machine["peak_flops_per_s_per_rank"] > 1e8


def test_trace_and_tensorboard_tell_the_same_run(runs: dict[tuple[int, int], Path]) -> None:
    out = runs[4, 3]
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(4))
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"step", "data", "compute", "optimizer", "wait dp", "communication dp"}
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
    forward = [event for event in slices if event["name"] == "forward"]
    micro_batches = load(out / "job.json").gradient_accumulation
    assert len(forward) == 4 * STEPS * micro_batches
    begun = sorted(event["id"] for event in events if event["ph"] == "b")
    assert begun == sorted(event["id"] for event in events if event["ph"] == "e")
    assert {event["name"] for event in events if event["ph"] == "b"} >= {
        "forward all_gather",
        "backward all_gather",
        "grads reduce_scatter",
    }
    board = EventAccumulator(str(out / "tensorboard"))
    board.Reload()
    losses = [line["loss"] for line in read_metrics(out)]
    assert [event.value for event in board.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
    assert [event.step for event in board.Scalars("mfu")] == list(range(STEPS))


def test_compare_prints_the_rows(runs: dict[tuple[int, int], Path], tmp_path: Path) -> None:
    code, text, err = run("compare", runs[2, 3], "--json")
    assert (code, err) == (0, "")
    rows = json.loads(text)
    assert rows == compare(runs[2, 3])
    assert all(set(row) == {"quantity", "predicted", "measured", "error"} for row in rows)
    code, text, _ = run("compare", runs[2, 3])
    assert code == 0
    assert "memory.optimizer" in text
    code, text, err = run("compare", tmp_path)
    assert (code, text) == (2, "")
    assert "holds no finished run: job.json" in err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("job.json", "[" * 100_000),
        ("memory.json", "[" * 100_000),
        ("memory.json", '{"ranks": 3}'),
        ("memory.json", '{"params_total": 1, "ranks": []}'),
        ("ledger.json", "{}"),
        ("metrics.jsonl", '{"a": 1}'),
        ("metrics.jsonl", "3"),
    ],
    ids=["deep job", "deep memory", "wrong kind", "no ranks", "no ledger", "no tokens", "no table"],
)
def test_compare_refuses_a_damaged_run(
    runs: dict[tuple[int, int], Path], tmp_path: Path, name: str, content: str
) -> None:
    for path in runs[2, 3].iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    (tmp_path / name).write_text(content)
    code, text, err = run("compare", tmp_path)
    assert (code, text) == (2, "")
    assert str(tmp_path) in err
    assert "Traceback" not in err
