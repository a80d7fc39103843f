"""The benchmarks' own arithmetic, and each of them end to end on the smallest input."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402
import meters  # noqa: E402
import overlap  # noqa: E402
import peers  # noqa: E402
import peers_report  # noqa: E402
import peers_rows  # noqa: E402
import product  # noqa: E402
import schedules  # noqa: E402

ENTRIES = (
    peers_rows.TWO_THREADS,
    peers_rows.pdtlib("X"),
    peers_rows.torch_entry("slow", ".slow"),
    peers_rows.torch_entry("fast and wrong", ".wrong"),
    peers_rows.torch_entry("dead", ".dead"),
)
ROW = peers_rows.Row(name="kind, 2 ranks", world=2, model="tiny", precision="fp32", entries=ENTRIES)


def record(entry: peers_rows.Entry, rounds: list[float], losses: list[float], lines: dict[str, int]) -> dict:
    sizes = {"peak_bytes": 1, "state_bytes": 2, "wire_bytes": 3.0, "python_calls": 4}
    timed = {"entry": entry, "error": None, "rounds": rounds, "cpu_s": rounds}
    return {**timed, **sizes, "losses": losses, "functions": lines}


def summary() -> dict[str, dict]:
    one, ours, slow, wrong, dead = ENTRIES
    records = {
        one.name: record(one, [1.0, 2.0, 4.0], [5.0, 4.0], {"shared": 7}),
        ours.name: record(ours, [0.5, 1.2, 2.0], [5.0, 4.001], {"shared": 7, "mine": 30}),
        slow.name: record(slow, [1.0, 1.0, 2.0], [5.0, 4.0], {"theirs": 90}),
        wrong.name: record(wrong, [0.1, 0.1, 0.1], [5.0, 4.1], {}),
        dead.name: {"entry": dead, "error": "log\nValueError: no\n", "rounds": [], "cpu_s": []},
    }
    return {result["contender"]: result for result in peers_report.summarise(ROW, records)}


def test_ratios_are_medians_within_rounds_beside_the_best_right_peer() -> None:
    found = summary()
    ours = found["pdtlib X"]
    assert ours["best_peer"] == "torch slow"  # the fast one's losses differ from one process's
    assert ours["ratio_to_best_peer"] == pytest.approx(1.0)  # of 0.5, 1.2 and 1.0
    assert ours["ratio_to_one_process"] == pytest.approx(0.5)
    assert (ours["right"], found["torch fast and wrong"]["right"]) == (True, False)
    assert (ours["lines_of_code"], found["one process, 2 threads"]["lines_of_code"]) == (30, 0)
    assert found["torch dead"]["error"] == "ValueError: no"
    assert found["one process, 2 threads"]["ratio_to_best_peer"] is None


def test_report_names_what_is_wrong_failed_or_left_out(tmp_path: Path) -> None:
    about = {"rounds": 3, "steps_in_a_round": 2, "load_at_start": 0.5, "runs": 1}
    peers_report.write(
        tmp_path, list(summary().values()), device="cpu", about=about, left_out=["tp, 8 ranks"]
    )
    text = (tmp_path / "peers-cpu.md").read_text()
    for part in (
        "**wrong**",
        "failed: ValueError: no",
        "Not measured: tp, 8 ranks.",
        "**pdtlib X**",
    ):
        assert part in text
    written = json.loads((tmp_path / "peers-cpu.json").read_text())
    assert written["about"]["rows_left_out"] == ["tp, 8 ranks"]
    assert len(written["rows"]) == len(ENTRIES)


def test_every_row_has_both_sides_in_both_forms() -> None:
    for short in (False, True):
        for row in peers_rows.rows(short=short):
            ours = [entry for entry in row.entries if entry.ours]
            theirs = [entry for entry in row.entries if not entry.ours and not entry.floor]
            assert ours, row.name
            assert theirs, row.name
            assert row.entries[0] is peers_rows.TWO_THREADS


@pytest.mark.timeout(600)
def test_peers_end_to_end() -> None:
    """pdtlib's and torch's DDP on the tiny model: right losses, one gradient's bytes on the wire."""
    row = peers_rows.row("ddp", world=2, model="tiny", short=True)
    found = {result["contender"]: result for result in peers.measure(row, rounds=1, steps=1, device="cpu")}
    assert set(found) == {"one process, 2 threads", "pdtlib DDP", "torch DDP, bucket view"}
    for name, result in found.items():
        assert result["right"], name
        assert result["step_s"] > 0
        assert result["state_bytes"] > 4 * 4 * 100_000  # parameters, gradients and two moments in fp32
    assert found["pdtlib DDP"]["lines_of_code"] > 50


def test_the_clock_counts_what_meters_take_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(meters.time, "perf_counter", lambda: float(next(now)))
    clock = meters.Clock()
    inner = clock.timed(
        lambda: None
    )  # reads the clock at its beginning, as the outer one does, not at its end
    clock.timed(inner)()
    assert clock.now_s == 2.0, "from 0 to 2, the inner one within"
    with clock.timed_span(nullcontext)():
        next(now)  # the body is not the meter's
    clock.end_step()
    assert (clock.steps_s, clock.now_s) == ([4.0], 0.0)


@pytest.mark.timeout(300)
def test_meters_of_a_real_run(tmp_path: Path) -> None:
    row = meters.measure("1F1B", tmp_path, model="tiny", steps=4)
    assert (row["ranks"], row["steps"]) == (2, 2)
    assert 0 < row["meters_s"] < row["step_s"]


def test_the_meters_report_is_below_a_hundredth() -> None:
    rows = json.loads((BENCHMARKS / "results/meters.json").read_text(encoding="utf-8"))["rows"]
    assert {row["layout"] for row in rows} == set(meters.LAYOUTS)
    assert max(row["share"] for row in rows) < 0.01


@pytest.mark.timeout(900)
def test_gpu_script_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = [layout for layout in gpu.EQUAL_LAYOUTS if layout[1] in ({}, {"tp": 2})][1:]
    some = [variant for variant in gpu.variants("cpu") if variant["recompute"] == "none"]
    monkeypatch.setattr(gpu, "EQUAL_LAYOUTS", layouts)
    monkeypatch.setattr(gpu, "variants", lambda device: iter(some))
    report = gpu.measure("cpu", minutes=1000)
    assert report["errors"] == []
    assert [row["equal"] for row in report["equality"]] == [True, True]
    assert [row["compiler"] for row in report["speed"]] == ["aot_eager", None]
    assert report["speed"][0]["last_loss"] == pytest.approx(report["speed"][1]["last_loss"], rel=1e-2)
    assert all(row["share_of_bf16_peak"] > 0 for row in report["kernels"]["rates"])


def test_growth_is_the_slope_of_logarithms() -> None:
    assert product.slope([(1, 3.0), (10, 300.0), (100, 30_000.0)]) == pytest.approx(2.0)
    found = product.growth([(10, lambda: None), (100, lambda: None)])
    assert [row["size"] for row in found["points"]] == [10, 100]


def test_overlap_and_schedules_end_to_end() -> None:
    options = {"ranks": 2, "ms": 1.0, "mb": 0.1, "rounds": 1}
    bare = overlap.seconds(options, overlap.BARE)
    found = overlap.measure(options, "pdtlib ZeRO-3", bare)
    assert found["step_s"] - found["exposed_s"] == pytest.approx(found["bare_step_s"]) == bare[0]
    assert min(found["step_s"], bare[0]) >= 8 * 3 * 0.001
    table = {"stages": 2, "micro_batches": 2, "ms": 2.0, "steps": 1, "kib": 1}
    row = schedules.row_of(table, "pdtlib", "zb-h1", "zb-h1")
    assert row["ratio"] == pytest.approx(row["step_s"] / row["ideal_s"])
    assert row["ratio"] >= 1.0
