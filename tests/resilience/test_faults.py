"""Real runs meet real faults and end as the run that met none. The long list: benchmarks/faults.py."""

import json
import time
from pathlib import Path

import pytest

from pdtlib.resilience import faults, trials

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
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
learning_rate = 1e-3
steps = 8
[parallel]
dp = 2
"""
OPTIONS = ("--elastic", "--watchdog", "6", "--checkpoint-every", "3")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def reference(job: Path) -> Path:
    out = job.with_name("reference")
    code, words = trials.run_local(job, out, *OPTIONS, ranks=2)
    assert code == 0, words
    return out


CASES = [
    # kind, step, memory, what a rank says
    ("kill", 5, 2, None),
    ("stop", 4, 0, "did not arrive: rank 1 ("),
    ("damage", 7, 0, None),
    ("flip", 4, 0, "the replicas' gradients differ after the reduction; rank 0 or 1 is wrong"),
]


@pytest.mark.parametrize(("kind", "step", "memory", "told"), CASES, ids=[case[0] for case in CASES])
def test_a_run_recovers(
    job: Path,
    reference: Path,
    tmp_path: Path,
    kind: str,
    step: int,
    memory: int,
    told: str | None,
) -> None:
    listed, out = tmp_path / "faults.json", tmp_path / "out"
    faults.write(listed, [faults.Fault(kind=kind, rank=1, step=step)])
    options = [*OPTIONS, "--faults", str(listed), "--memory-every", str(memory)]
    began = time.monotonic()
    code, words = trials.run_local(job, out, *options, ranks=2, max_restarts=6, timeout_s=240)
    outcome = trials.judge(
        out,
        reference,
        code=code,
        words=words,
        seconds=time.monotonic() - began,
        left=trials.ranks_left(),
        exact=True,
    )
    assert outcome.recovered, outcome
    assert outcome.difference == 0.0
    assert (out / "faults" / "0").exists(), "the fault has happened"
    if told:
        assert any(told in word for word in words), words
    if memory:  # copies in memory are complete when the step is; a save to disk may still be under way
        said = [path.read_text() for path in (tmp_path / "out-logs").rglob("stdout.log")]
        assert any("going on after step 4 from memory" in text for text in said), said


def test_a_fault_without_restarts_is_no_recovery(job: Path, reference: Path, tmp_path: Path) -> None:
    """The judgement can fail: nobody starts the ranks again."""
    listed, out = tmp_path / "faults.json", tmp_path / "out"
    faults.write(listed, [faults.Fault(kind="kill", rank=1, step=5)])
    code, words = trials.run_local(job, out, *OPTIONS, "--faults", str(listed), ranks=2, timeout_s=240)
    outcome = trials.judge(
        out, reference, code=code, words=words, seconds=0, left=trials.ranks_left(), exact=True
    )
    assert (outcome.recovered, outcome.samples_once, outcome.difference) == (False, False, None)
    assert code != 0


def test_the_long_list_is_in_the_repository() -> None:
    """Fifty seeds, and not one that was lost; benchmarks/faults.py writes it."""
    report = json.loads((ROOT / "benchmarks" / "results" / "faults.json").read_text())
    rows = report["runs"]
    assert sorted(row["seed"] for row in rows) == list(range(50))
    assert all(row["recovered"] for row in rows)
    assert {"kill", "stop", "damage", "saving", "flip"} <= {row["fault"] for row in rows}
    assert {("node", 0), ("node", 1), ("link", 1)} <= {(row["fault"], row["rank"]) for row in rows}
