"""The batch files on a real Slurm of one node (``make test-slurm``): preempted, queued again, they end right.

The packages are slurm-wlm and munge; without them these tests fail, and say so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_node import Slurm, missing, one_node, wait_for

from pdtlib.engine.training.run_dir import TOLD_TO_END, last_checkpoint, read_metrics
from pdtlib.resilience.trials import largest_difference, run_local

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "labs" / "cluster"
ONE_NODE = ("--nodes", "1", "--gpus-per-node", "2", "--chdir", str(ROOT))
PATIENCE_S = 900.0
STEPS = 600
"""Of some 10 ms each: the urgent job must come while they run, and takes a second or two to start."""
JOB = """
[model]
layers = 2
hidden = 32
heads = 2
vocab = 256
seq = 32
[train]
global_batch = 8
micro_batch = 2
precision = "fp32"
[parallel]
dp = 2
"""

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    assert not missing(), f"install slurm-wlm and munge; missing: {', '.join(missing())}"
    folder = tmp_path_factory.mktemp("slurm")
    with one_node(folder) as found:
        environment = Path(sys.executable).parents[1]
        found.env |= {"PDT_ENV": str(environment), "PDT_LOGS": str(folder), "OMP_NUM_THREADS": "1"}
        yield found


def submit(slurm: Slurm, partition: str, *words: str) -> str:
    output = f"{slurm.folder}/%j.log"
    return slurm.submit("--partition", partition, "--output", output, *ONE_NODE, *words)


def output(slurm: Slurm, number: str) -> str:
    return (slurm.folder / f"{number}.log").read_text(encoding="utf-8")


def wait_until_ended(slurm: Slurm, *numbers: str) -> None:
    for number in numbers:
        wait_for(lambda job=number: slurm.ended(job), timeout_s=PATIENCE_S, what=f"the end of job {number}")


def running(slurm: Slurm, number: str) -> bool:
    return slurm.job(number)["JobState"] == "RUNNING"


def test_lab_02_gives_way_to_lab_09_and_both_end_right(slurm: Slurm) -> None:
    lab = str(CLUSTER / "lab.sbatch")
    patient = submit(slurm, "patient", lab, "02", "--preset", "laptop")
    wait_for(lambda: running(slurm, patient), timeout_s=60, what="the start of lab 02")
    urgent = submit(slurm, "urgent", lab, "09")
    wait_for(lambda: running(slurm, urgent), timeout_s=120, what="the start of lab 09")
    assert not running(slurm, patient), "there is one node"
    wait_until_ended(slurm, urgent, patient)
    for number in (urgent, patient):
        assert slurm.job(number)["JobState"] == "COMPLETED", output(slurm, number) + slurm.logs()
        assert slurm.job(number)["ExitCode"] == "0:0"
    assert slurm.job(patient)["Restarts"] == "1"
    assert slurm.job(urgent)["Restarts"] == "0"
    assert "2 processes on cpu" in output(slurm, patient)
    assert "every byte as planned, every loss equal" in output(slurm, patient)
    assert "every sample once, every gradient and byte as predicted" in output(slurm, urgent)


def test_a_preempted_training_saves_and_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    job, out = tmp_path / "job.toml", tmp_path / "run"
    job.write_text(JOB, encoding="utf-8")
    arguments = (str(job), str(out), "--steps", str(STEPS))
    patient = submit(slurm, "patient", str(CLUSTER / "train.sbatch"), *arguments)
    wait_for(lambda: len(read_metrics(out)) >= 3, timeout_s=PATIENCE_S, what="three steps")
    urgent = submit(slurm, "urgent", "--wrap", "true")
    wait_until_ended(slurm, urgent, patient)
    said = output(slurm, patient)
    assert slurm.job(patient)["JobState"] == "COMPLETED", said + slurm.logs()
    assert slurm.job(patient)["Restarts"] == "1"
    assert "told to end: saved after step" in said, "no checkpoint was asked for, so this is where it went on"
    assert "going on after step" in said
    assert not (out / TOLD_TO_END).exists()
    assert [line["step"] for line in read_metrics(out)] == list(range(STEPS))
    reference = tmp_path / "undisturbed"
    code, words = run_local(job, reference, "--steps", str(STEPS), ranks=2, timeout_s=PATIENCE_S)
    assert code == 0, words
    found, expected = last_checkpoint(out), last_checkpoint(reference)
    assert found is not None
    assert expected is not None
    assert largest_difference(found, expected) == 0.0


def test_a_lab_that_fails_is_a_failed_job(slurm: Slurm) -> None:
    number = submit(slurm, "urgent", str(CLUSTER / "lab.sbatch"), "02", "--data", "missing.txt")
    wait_until_ended(slurm, number)
    assert slurm.job(number)["JobState"] == "FAILED", output(slurm, number)
    assert "there is no such file" in output(slurm, number)
