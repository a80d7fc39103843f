"""Lab 04 runs every schedule as its table says, and would say so if it did not."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from lab_running import ROOT, command, comparable, load, run

from pdtlib.plan.comm import Message
from pdtlib.plan.schedule import NAMES
from pdtlib.plan.spec import SCHEDULES

LAB = ROOT / "labs" / "04_pipeline"


def without_times(text: str) -> list[str]:
    """A lab's lines but those with measured times, which have a percentage."""
    return [line for line in comparable(text) if "%" not in line]


@pytest.mark.parametrize("processes", [4, 2])
def test_lab_04_runs_every_schedule_as_its_table_says(processes: int, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    done = run(command(LAB, "--unit-ms", "10", "--json", str(report_file), processes=processes))
    assert done.returncode == 0, done.stdout + done.stderr
    if processes == 4:
        expected = (LAB / "expected.txt").read_text(encoding="utf-8")
        assert without_times(done.stdout) == without_times(expected)
        assert expected.count(" % ") >= len(NAMES)
    report = json.loads(report_file.read_text(encoding="utf-8"))
    assert [each["name"] for each in report["sleeping"]] == list(NAMES)
    for each in report["sleeping"]:
        assert [row["measured"] for row in each["rows"]] == [processes] * 3, each["name"]
        # A sleep is never too short, so no step is, either.
        assert each["step_s"]["measured"] >= each["step_s"]["predicted"] * 0.99
    assert [each["schedule"] for each in report["trained"]] == list(SCHEDULES)
    for each in report["trained"]:
        assert each["ranks_off"] == []
        assert all(row["right"] for row in each["rows"])
        sent, *rest = each["rows"]
        assert sent["measured"] == sent["predicted"] > 0
        assert [row["measured"] < 1e-3 for row in rest] == [True] * 4
    losses = report["one_process"]["losses"]
    assert losses[-1] < losses[0] - 0.05, "it does not learn"


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load(LAB / "lab.py", "lab_04")


def test_lab_04_notices_a_message_that_the_plan_has_not(lab: ModuleType) -> None:
    planned = [Message("pp", "send", phase, 8, 1024.0, 4).row() for phase in ("forward", "backward")]
    assert lab._differing(planned, planned[::-1]) == 0
    assert lab._differing(planned, planned[:1]) == 1
    assert lab._differing(planned, [planned[0], {**planned[1], "count": 7}]) == 1
    assert lab._differing(planned, [planned[0], {**planned[1], "message_bytes": 1000.0}]) == 2
    halves = [{**planned[0], "count": 4}, {**planned[0], "count": 4}, planned[1]]
    assert lab._differing(planned, halves) == 0


def test_lab_04_notices_an_order_that_is_not_the_tables(lab: ModuleType) -> None:
    orders = [["F0", "B0"], ["F0", "B0"]]
    assert lab._equal(orders, [["F0", "B0"], ["F0", "B0"]]) == 2
    assert lab._equal(orders, [["F0", "B0"], ["B0", "F0"]]) == 1


def test_lab_04_wants_more_than_one_process() -> None:
    done = run(command(LAB, processes=1))
    assert done.returncode != 0
    assert "a pipeline needs 2 or more" in done.stderr
