"""Lab 08: the two ways to measure agree, each fault is named, and what is off is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_running import ROOT, command, comparable, load, run

LAB = ROOT / "labs" / "08_efficiency"
OWN_STEP_S = 0.1


def test_lab_08_is_as_predicted(tmp_path: Path) -> None:
    done = run(command(LAB, "--json", str(tmp_path / "report.json")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert comparable(done.stdout) == comparable((LAB / "expected.txt").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["off"] == []
    assert len({trace["cause"] for trace in report["traces"]}) == 6
    for trace in report["traces"]:
        assert trace["named"] == trace["cause"]
    pipeline, data = report["runs"]["two pipeline stages"], report["runs"]["data parallelism"]
    assert pipeline["shares"]["bubble"] > 0
    assert data["shares"]["bubble"] == 0
    assert data["shares"]["exposed communication"] > 0
    assert sum(pipeline["shares"].values()) == pytest.approx(1)


def test_the_traces_come_without_their_answers(tmp_path: Path) -> None:
    done = run(command(LAB, "--traces", str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"trace-{number}" for number in range(1, 7)]
    lab = load(LAB / "lab.py", "lab_08")
    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("trace-*/*.json"))
    assert not any(cause in written for cause in lab.FAULTS)
    assert not any(cause in done.stdout for cause in lab.FAULTS)


def measured(folder: Path, **change: float) -> Path:
    """A run directory of which the trace has steps of 0.1 s: 0.02 s exposed, 0.03 s bubble."""
    lab = load(LAB / "lab.py", "lab_08")
    from pdtlib.observe.trace import write_perfetto
    from pdtlib.plan.job import loads, to_json
    from pdtlib.plan.overlap import Span

    job = loads(lab.toml("dp", "laptop"), format="toml")
    steps = 3
    spans = [
        Span(lane, "x", OWN_STEP_S * step + start, OWN_STEP_S * step + end)
        for step in range(steps)
        for lane, start, end in (
            ("step", 0.0, 0.1),
            ("compute", 0.0, 0.1),
            ("wait dp", 0.02, 0.04),
            ("wait pp", 0.05, 0.08),
        )
    ]
    write_perfetto(folder / "trace.json", ranks={0: spans})
    (folder / "job.json").write_text(to_json(job))
    peak = 1e12
    (folder / "machine.json").write_text(json.dumps({"peak_flops_per_s_per_rank": peak}))
    mfu = lab.flops.model_flops_per_step(job) / (2 * peak * OWN_STEP_S)
    line = {"time_s": OWN_STEP_S, "comm_share": 0.2, "bubble_share": 0.3, "mfu": mfu}
    for name, factor in change.items():
        line[name] *= factor
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, **line}) + "\n" for step in range(steps))
    )
    return folder


@pytest.mark.parametrize(
    ("change", "off"),
    [
        ({}, set()),
        ({"time_s": 1.05}, {"sum of the shares", "mfu"}),
        ({"comm_share": 1.5}, {"comm_share"}),
        ({"bubble_share": 0.8}, {"bubble_share"}),
        ({"mfu": 2.0}, {"mfu"}),
    ],
)
def test_lab_08_notices_what_does_not_agree(change: dict[str, float], off: set[str], tmp_path: Path) -> None:
    lab = load(LAB / "lab.py", "lab_08")
    wrong = [row.quantity for row in lab.reconcile("run", measured(tmp_path, **change)) if not row.right]
    assert len(wrong) == len(off)
    assert all(any(quantity.startswith(start) for start in off) for quantity in wrong)


def test_lab_08_notices_a_fault_that_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = load(LAB / "lab.py", "lab_08")
    monkeypatch.setattr(lab, "diagnose", lambda out: [])
    assert not any(row.right for row, _ in lab.faults(tmp_path))
