"""Labs 04 and 05 run as their tables and plans say, and would say so if they did not."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lab_running import ROOT, command, comparable, load, run

from pdtlib.book import small_run
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


def test_a_message_that_the_plan_has_not_is_noticed() -> None:
    planned = [Message("pp", "send", phase, 8, 1024.0, 4).row() for phase in ("forward", "backward")]
    assert small_run.differing(planned, planned[::-1]) == 0
    assert small_run.differing(planned, planned[:1]) == 1
    assert small_run.differing(planned, [planned[0], {**planned[1], "count": 7}]) == 1
    assert small_run.differing(planned, [planned[0], {**planned[1], "message_bytes": 1000.0}]) == 2
    halves = [{**planned[0], "count": 4}, {**planned[0], "count": 4}, planned[1]]
    assert small_run.differing(planned, halves) == 0


def test_lab_04_notices_an_order_that_is_not_the_tables(lab: ModuleType) -> None:
    orders = [["F0", "B0"], ["F0", "B0"]]
    assert lab._equal(orders, [["F0", "B0"], ["F0", "B0"]]) == 2
    assert lab._equal(orders, [["F0", "B0"], ["B0", "F0"]]) == 1


def test_lab_04_wants_more_than_one_process() -> None:
    done = run(command(LAB, processes=1))
    assert done.returncode != 0
    assert "a pipeline needs 2 or more" in done.stderr


LAB_05 = ROOT / "labs" / "05_3d_parallel"
TESTBED_PART = "tensor parallelism inside a node"


def before_the_testbed(text: str) -> list[str]:
    """The lines of lab 05 up to its third part, whose bytes on the wire differ a little from run to run."""
    return comparable(text.partition(TESTBED_PART)[0])


def test_lab_05_is_one_training_in_both_orders(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    done = run(command(LAB_05, "--no-testbed", "--json", str(report_file)))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = (LAB_05 / "expected.txt").read_text(encoding="utf-8")
    assert before_the_testbed(done.stdout) == before_the_testbed(expected)
    assert "left out: this machine can't make a testbed: --no-testbed" in done.stdout
    report = json.loads(report_file.read_text(encoding="utf-8"))
    assert [(each["order"][:3], each["zero_stage"]) for each in report["runs"]] == [
        ("the", 0),
        ("the", 1),
        ("Meg", 0),
        ("Meg", 1),
    ]
    for each in report["runs"]:
        assert each["ranks_off"] == []
        assert all(row["right"] for row in each["rows"])
        assert [row["measured"] > 0 for row in each["rows"][:5]] == [True] * 5
    losses = report["one_process"]["losses"]
    assert losses[-1] < losses[0] - 0.05, "it does not learn"


def test_lab_05_notices_a_group_that_is_not_the_closed_forms() -> None:
    from pdtlib.engine.mesh import Mesh
    from pdtlib.plan.job import from_dict
    from pdtlib.plan.ranks import ARTICLE_ORDER

    lab = load(LAB_05 / "lab.py", "lab_05")
    job = from_dict({**lab.LAPTOP, "parallel": lab.DEGREES})
    (row,) = lab.group_rows("alone", Mesh(None, torch.device("cpu")), job, ARTICLE_ORDER, 0)
    assert not row.right  # a mesh of one rank has no groups of two


def test_lab_05_predicts_what_goes_between_nodes() -> None:
    nodes = load(LAB_05 / "nodes.py", "lab_05_nodes")
    inside, across = (nodes.planned(where) for where in ("inside", "across"))
    assert inside["between"] == 2 * inside["dp"]
    assert across["between"] == 2 * across["tp"]
    assert across["between"] > 5 * inside["between"]


def test_lab_05_wants_eight_processes() -> None:
    done = run(command(LAB_05, processes=1))
    assert done.returncode != 0
    assert "needs 8" in done.stderr
