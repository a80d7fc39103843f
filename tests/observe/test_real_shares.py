"""The shares of a real run, read from its trace, beside what the run itself has measured."""

import statistics
from pathlib import Path

import pytest

from pdtlib.engine.training.run_dir import read_metrics
from pdtlib.observe.diagnosis import diagnose
from pdtlib.observe.shares import read_perfetto
from pdtlib.plan.step_shares import steps_of
from pdtlib.resilience import faults, trials

JOB = """
[model]
layers = 2
hidden = 64
heads = 2
vocab = 256
seq = 64
[train]
global_batch = 8
micro_batch = 2
precision = "fp32"
steps = 8
[parallel]
dp = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which rank 1 stands still for a second before each of the steps 2 to 7."""
    folder = tmp_path_factory.mktemp("shares")
    (folder / "job.toml").write_text(JOB)
    faults.write(folder / "faults.json", [faults.Fault(kind="slow", rank=1, step=at) for at in range(2, 8)])
    code, words = trials.run_local(
        folder / "job.toml", folder / "out", "--faults", str(folder / "faults.json"), ranks=2
    )
    assert code == 0, words
    return folder / "out"


def test_shares_add_up_to_the_measured_step(run: Path) -> None:
    """Bubble, exposed communication and the rest against time_s, which a clock of its own has measured."""
    steps = steps_of(read_perfetto(run / "trace.json")[0])
    metrics = read_metrics(run)
    assert len(steps) == len(metrics) == 8
    ratios = []
    for step, line in zip(steps, metrics, strict=True):
        total = step.compute_s + step.communication_s + step.bubble_s + step.data_s + step.other_s
        assert total == pytest.approx(step.step_s, rel=1e-6)
        ratios.append(total / line["time_s"])
        assert step.communication_s / step.step_s == pytest.approx(line["comm_share"], abs=0.02)
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.02)
    for line in metrics:
        rate = line["mfu"] * line["time_s"]
        assert rate == pytest.approx(metrics[0]["mfu"] * metrics[0]["time_s"], rel=1e-6), "FLOPs of a step"


def test_who_waits_for_whom(run: Path) -> None:
    """Rank 1 sleeps outside of all spans; rank 0 waits for it."""
    ranks = read_perfetto(run / "trace.json")
    slow = {rank: steps_of(ranks[rank])[2:] for rank in (0, 1)}
    assert statistics.median(step.other_s for step in slow[1]) > 0.9
    assert statistics.median(step.communication_s for step in slow[0]) > 0.9
    first, *_ = diagnose(run)
    assert first.cause == "straggler"
    assert "rank 1" in first.evidence
