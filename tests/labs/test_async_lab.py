"""Lab 09: no sample is lost or seen twice, messages are as planned, and the lab says so if not."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from lab_running import ROOT, command, comparable, load, run

from pdtlib.testbed import namespaces

LAB = ROOT / "labs" / "09_async_and_elastic"
PARTS = {"elastic": 2, "apart": 6, "node": 1}
LAST = "every sample once, every gradient and byte as predicted"


@pytest.mark.parametrize(("part", "key"), [("elastic", "elastic"), ("node", "node"), ("async", "apart")])
def test_a_part_of_lab_09_goes_as_predicted(part: str, key: str, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    done = run(command(LAB, "--part", part, "--json", str(report_file)))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = comparable((LAB / "expected.txt").read_text(encoding="utf-8"))
    *lines, last = comparable(done.stdout)
    assert last == LAST
    report = json.loads(report_file.read_text(encoding="utf-8"))
    if part == "node":
        first, *lines = lines
        assert first == expected[0]
        if reason := load(LAB / "losing_a_node.py", "losing_a_node_of_lab_09").reason_against():
            assert lines[-1] == f"left out: this machine can't make a testbed: {reason}"
            assert report["node"]["rows"] == []
            return
    start = expected.index(lines[0])
    assert lines == expected[start : start + len(lines)]
    reports = [report[key]] if part == "node" else report[key]
    assert len(reports) == PARTS[key]
    assert all(row["right"] for each in reports for row in each["rows"])
    if part == "async":
        for each in reports:
            assert each["held_out_loss"] < report["untrained"] - 1.0, each["title"]
        free = next(each for each in reports if "no bound" in each["title"])
        assert max(free["staleness"]) > 0


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load(LAB / "lab.py", "lab_09")


def test_lab_09_notices_an_old_gradient_and_a_worker_too_far_ahead(lab: ModuleType) -> None:
    good = {"staleness": [0] * lab.UPDATES, "spread": [1] * lab.UPDATES}
    assert all(row.right for row in lab.server_rows(0, good))
    late = {**good, "staleness": [*good["staleness"][1:], 3]}
    ahead = {**good, "spread": [*good["spread"][1:], 2]}
    lost = {**good, "staleness": good["staleness"][1:]}
    for bad, wrong in ((late, 1), (ahead, 2), (lost, 0)):
        assert [row.right for row in lab.server_rows(0, bad)].index(False) == wrong


def test_lab_09_notices_bytes_that_are_not_planned(lab: ModuleType) -> None:
    (row,) = lab.method_rows("local-sgd", {"sent_bytes_per_step": 0.0})
    assert not row.right
    (row,) = lab.method_rows("local-sgd", {"sent_bytes_per_step": row.predicted})
    assert row.right


def test_lab_09_says_why_it_leaves_the_node_out(
    lab: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise namespaces.Impossible("user namespaces are switched off")

    monkeypatch.setattr(namespaces, "check", refuse)
    found = lab.node(tmp_path, tmp_path / "job.toml", tmp_path / "undisturbed")
    assert (found["possible"], found["rows"]) == (False, [])
    lab.show_node(found)
    assert "can't make a testbed: user namespaces are switched off" in capsys.readouterr().out


def test_lab_09_counts_the_workers_of_a_step(lab: ModuleType, tmp_path: Path) -> None:
    """A node that died too late would have taken part in the last step."""
    (tmp_path / "samples").mkdir()
    for rank, steps in enumerate(([6, 7], [6, 7], [6])):
        lines = [json.dumps({"step": step, "windows": [rank]}) for step in steps]
        (tmp_path / "samples" / f"rank-{rank:05d}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert [lab._workers(tmp_path, step) for step in (6, 7, 8)] == [3, 2, 0]


def test_lab_09_notices_samples_that_were_lost_or_read_twice(
    lab: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {"reference": {0: [1, 2], 1: [3, 4]}, "run": {0: [1, 2], 1: [4, 4]}}
    monkeypatch.setattr(lab, "trained", lambda out: logs[out.name])
    monkeypatch.setattr(lab, "last_checkpoint", lambda out: None)
    monkeypatch.setattr(lab, "STEPS", 2)
    found = lab._compared("x", tmp_path / "run", tmp_path / "reference", 0, killed=1, exact=True)
    by_name = {row.quantity: row for row in found["rows"]}
    assert by_name["samples lost"].measured == 1
    assert by_name["samples seen once too often"].measured == 1
    assert not by_name["weights and moments, largest difference"].right
