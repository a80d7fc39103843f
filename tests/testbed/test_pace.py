"""Stages that take as long as they are told compute what they always do."""

import json
from pathlib import Path

import pytest

from pdtlib.engine.training.run_dir import read_metrics
from pdtlib.observe.shares import read_perfetto
from pdtlib.plan.schedule import NAMES, Costs, build, simulate
from pdtlib.resilience import trials

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
STEPS, MS = 3, 20
JOB = """
[model]
layers = 4
hidden = 32
heads = 2
vocab = 256
seq = 32
[train]
global_batch = 4
micro_batch = 1
precision = "fp32"
steps = 3
[parallel]
pp = 2
schedule = "{}"
"""
PLACES = {"interleaved": 2, "zb-h1": 1}


def train(folder: Path, name: str, schedule: str, *options: str) -> Path:
    job, out = folder / f"{schedule}.toml", folder / name
    chunks = f"vpp = {PLACES[schedule]}\n" if PLACES[schedule] > 1 else ""
    job.write_text(JOB.format(schedule) + chunks)
    code, words = trials.run_local(job, out, *options, ranks=2, timeout_s=280)
    assert code == 0, words
    return out


@pytest.mark.parametrize("schedule", PLACES)
def test_a_stage_takes_its_time_and_computes_the_same(schedule: str, tmp_path: Path) -> None:
    paced = train(tmp_path, "paced", schedule, "--stage-ms", str(MS))
    freely = train(tmp_path, "freely", schedule)
    assert [line["loss"] for line in read_metrics(paced)] == [line["loss"] for line in read_metrics(freely)]
    whole_s = MS / 1e3 / PLACES[schedule]
    split = schedule == "zb-h1"
    for spans in read_perfetto(paced / "trace.json").values():
        actions = [span for span in spans if span.lane == "compute" and span.name[0] in "FBW"]
        assert len(actions) == STEPS * 4 * PLACES[schedule] * (3 if split else 2)
        for span in actions:
            halves = 2 if span.name[0] == "B" and not split else 1
            assert span.end_s - span.start_s >= 0.999 * halves * whole_s, span


def test_every_bubble_is_within_two_points_of_the_simulators() -> None:
    """On sleeping stages; benchmarks/bubbles.py writes the report, on a machine that does nothing else."""
    report = json.loads((ROOT / "benchmarks" / "results" / "bubbles.json").read_text())
    setting = report["setting"]
    shape = {"stages": setting["stages"], "microbatches": setting["micro_batches"]}
    assert [row["schedule"] for row in report["rows"]] == list(NAMES)
    for row in report["rows"]:
        planned = simulate(build(row["schedule"], **shape), Costs()).bubble_fraction
        assert row["predicted"] == pytest.approx(planned, abs=1e-9)
        assert abs(row["measured"] - planned) < 0.02, row["schedule"]
