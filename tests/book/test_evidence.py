"""The page "How this book is checked": tables are computed from reports, absent ones are said to be."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pdtlib.book import evidence
from pdtlib.book.evidence_names import GROUPS, QUANTITIES

ROOT = Path(__file__).parents[2]
ABOUT = {"date": "2026-01-02", "processors": "2 × a CPU", "torch": "2.0", "rounds": 5}
RUN = {
    "row": "ZeRO-1",
    "contender": "ours",
    "pdtlib": True,
    "floor": False,
    "step_s": 0.5,
    "spread": 0.02,
    "ratio_to_one_process": 0.75,
    "ratio_to_best_peer": 0.875,
    "peak_bytes": 3e8,
    "wire_bytes": 2e7,
    "lines_of_code": 1234,
    "loss_error": 1e-7,
    "right": True,
}
PEERS = {
    "about": ABOUT,
    "rows": [
        RUN,
        {**RUN, "contender": "theirs", "pdtlib": False, "ratio_to_best_peer": None, "right": False},
        {"row": "pipeline", "contender": "broken", "pdtlib": False, "error": "it fell"},
        {**RUN, "row": "pipeline"},
    ],
}
REPORTS: dict[str, tuple[dict[str, Any], str]] = {
    "matrix.json": (
        {"passed": 9, "run": 10, "valid_combinations": 1200, "not_run": ["x"]},
        "9 of 10 cases equal, of 1,200 valid combinations, 1 not run",
    ),
    "mutants.json": ({"counts": {"survived": 1, "killed": 300}}, "of 301 removals: 300 killed, 1 survived"),
    "layouts.json": (
        {"limit": 1e-5, "layouts": {"a": {"largest_distance": 2e-7}, "b": {"largest_distance": 0.0}}},
        "2 layouts, losses at most 2.0e-07 apart (limit 1e-05)",
    ),
    "dryruns.json": (
        {"rows": [{"equal": True, "world_size": 8}, {"equal": False, "world_size": 1024}]},
        "1 of 2 ranks equal, on up to 1,024 GPUs",
    ),
    "faults.json": (
        {"runs": [{"recovered": True, "samples_once": True}, {"recovered": False, "samples_once": True}]},
        "1 of 2 runs recovered, 2 with every sample once",
    ),
    "placement.json": (
        {
            "ratio": {"measured": 2.5, "predicted": 2.25},
            "rows": [{"wire_bytes": 110, "ledger_bytes": 100}, {"wire_bytes": 102, "ledger_bytes": 100}],
        },
        "2.50 times as long a step, predicted 2.25; "
        "at most 10.0\N{NO-BREAK SPACE}% more bytes on the wire than in the ledger",
    ),
    "async.json": (
        {
            "rows": [
                {"method": method, "curve": [{"steps": 40, "held_out_loss": loss}]}
                for method, loss in (("synchronous", 2.5), ("diloco", 2.75))
            ]
        },
        "held-out loss after 40 steps: 2.50, at most 2.75 otherwise",
    ),
    "bubbles.json": (
        {"rows": [{"schedule": "1f1b", "points": -2.5}, {"schedule": "gpipe", "points": 1.0}]},
        "2 schedules, at most 2.5 points off (1f1b)",
    ),
    "schedules.json": (
        {
            "rows": [
                {"schedule": "gpipe", "executor": "ours", "ratio": 1.02},
                {"schedule": "1f1b", "executor": "ours", "ratio": 1.03},
                {"schedule": "zb", "executor": "theirs", "ratio": 1.05},
                {"schedule": "unknown to the simulator", "executor": "theirs", "ratio": None},
            ]
        },
        "a step over the simulator's, at most: ours 1.030 (1f1b), theirs 1.050 (zb)",
    ),
    "overlap.json": (
        {"rows": [{"contender": "ours", "hidden": 0.75}, {"contender": "theirs", "hidden": 0.5}]},
        "hidden: ours 75\N{NO-BREAK SPACE}%, theirs 50\N{NO-BREAK SPACE}%",
    ),
    "meters.json": (
        {"rows": [{"layout": "DDP", "share": 0.001}, {"layout": "1F1B", "share": 0.004}]},
        "of a step, at most: 0.40\N{NO-BREAK SPACE}% (1F1B)",
    ),
    "product.json": (
        {
            "start_up": [{"command": "pdt predict --help", "wall_s": 0.125}],
            "pages": [
                {"explorers": 2, "loaded_gzip_bytes": 1.2e6, "interactive_s": 1.5},
                {"explorers": 0, "loaded_gzip_bytes": 9e6, "interactive_s": 9.0},
            ],
            "moves": [
                {
                    "first_ms": {"median": 40.0, "figure_median": 80.0},
                    "later_from_table_ms": {"median": 20.0, "figure_median": 40.0},
                    "later_from_python_ms": None,
                },
                {
                    "first_ms": {"median": 60.0, "figure_median": 120.0},
                    "later_from_table_ms": None,
                    "later_from_python_ms": {"median": 90.0, "figure_median": 180.0},
                },
            ],
        },
        "pdt predict --help 125 ms; a page with explorers loads 1.2 MB and answers after 1.5 s, at most; "
        "milliseconds to new numbers and to the new figure, of the slowest explorer: first move 60 and 120, "
        "later ones 20 and 40, computed live 90 and 180",
    ),
}


def put(root: Path, name: str, report: Any) -> None:
    (root / evidence.RESULTS).mkdir(parents=True, exist_ok=True)
    (root / evidence.RESULTS / name).write_text(json.dumps(report), encoding="utf-8")


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *identity, *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout


def test_reports_are_summed_up_with_date_and_commit(tmp_path: Path) -> None:
    assert set(REPORTS) == set(evidence.REPORTS)
    for name, (report, _) in REPORTS.items():
        put(tmp_path, name, report)
    git(tmp_path, "init")
    git(tmp_path, "add", "--", str(evidence.RESULTS / "layouts.json"))
    git(tmp_path, "commit", "-m", "x", "--date", "2026-01-02T00:00:00")
    rows = {str(row[0]): row for row in evidence.reports(tmp_path).rows}
    for name, (_, outcome) in REPORTS.items():
        assert rows[name.removesuffix(".json")][2] == outcome
    commit = git(tmp_path, "rev-parse", "--short", "HEAD").strip()
    assert rows["layouts"][4] == commit
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(rows["layouts"][3]))
    assert rows["faults"][3:] == ("", "")


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    rows = evidence.reports(tmp_path).rows
    assert {row[2] for row in rows} == {evidence.NOT_MEASURED}
    assert evidence.peers(tmp_path / evidence.PEERS) == []
    assert evidence.NOT_MEASURED in evidence.peers_about(tmp_path / evidence.PEERS)


def test_convergence_has_a_row_for_each_way_of_training(tmp_path: Path) -> None:
    assert evidence.NOT_MEASURED in evidence.convergence(tmp_path).caption
    points = [{"steps": 50, "held_out_loss": 3.5}, {"steps": 100, "held_out_loss": 2.25}]
    late = [{**point, "staleness_mean": 1.96} for point in points]
    ways: list[dict[str, Any]] = [
        {"method": "synchronous", "every": 1, "curve": points},
        {"method": "diloco", "every": 10, "curve": points},
        *({"method": "server", "bound": bound, "curve": late} for bound in (None, 2, 0)),
    ]
    put(tmp_path, "async.json", {"setting": {"untrained": 5.5, "params": 1234, "workers": 4}, "rows": ways})
    table = evidence.convergence(tmp_path)
    assert "5.500 before: 1,234 parameters" in table.caption
    assert [row[0] for row in table.rows] == [
        "synchronous",
        "DiLoCo, a meeting every 10 steps",
        "parameter server, no bound",
        "parameter server, at most 2 ahead",
        "parameter server, in step",
    ]
    assert table.rows[1][1:] == ("3.500", "2.250", "")
    assert table.rows[2][1:] == ("3.500", "2.250", "2.0")


@pytest.mark.parametrize("name", sorted(evidence.REPORTS))
def test_the_repositorys_own_reports_can_be_read(name: str) -> None:
    path = ROOT / evidence.RESULTS / name
    rows = {row[0]: row[2] for row in evidence.reports(ROOT).rows}
    said = rows[name.removesuffix(".json")]
    assert (said == evidence.NOT_MEASURED) == (not path.exists())


def test_peers_have_a_table_for_each_task(tmp_path: Path) -> None:
    put(tmp_path, "peers-cpu.json", PEERS)
    first, second = evidence.peers(tmp_path / evidence.PEERS)
    assert (first.caption, second.caption) == ("ZeRO-1", "pipeline")
    ours, theirs = first.rows
    spread = "2.0\N{NO-BREAK SPACE}%"
    assert ours == (
        "ours (pdtlib)", "0.75", "0.88", "0.500", spread, "300 MB", "20 MB", "1,234", "1.0e-07",
    )  # fmt: skip
    assert theirs[2] == ""
    assert theirs[-1] == "1.0e-07 (wrong)"
    assert second.rows[0][:2] == ("broken", "failed: it fell")
    said = evidence.peers_about(tmp_path / evidence.PEERS)
    assert "on 2026-01-02 on 2 cores (a CPU), which all ranks share" in said


def test_a_task_of_peers_names_the_axes_that_it_has(tmp_path: Path) -> None:
    """With 4 ranks a row of the kind 3d is 2 stages of 2 ranks each: no replicas."""
    tasks = ("3d, 4 ranks, fp32, 12M", "3d, 8 ranks, fp32, 12M", "2d, 4 ranks, fp32, 12M", "tp, 4 ranks")
    put(tmp_path, "peers-cpu.json", {"about": ABOUT, "rows": [{**RUN, "row": task} for task in tasks]})
    assert [table.caption for table in evidence.peers(tmp_path / evidence.PEERS)] == [
        "pp × tp, 4 ranks, fp32, 12M",
        "dp × pp × tp, 8 ranks, fp32, 12M",
        "dp × tp, 4 ranks, fp32, 12M",
        "tp, 4 ranks",
    ]


def test_the_repositorys_own_peers_can_be_read() -> None:
    path = ROOT / evidence.PEERS
    assert bool(evidence.peers(path)) == path.exists()
    assert evidence.peers_about(path)


def test_every_published_group_is_predicted_and_has_a_name() -> None:
    cases = json.loads((ROOT / "benchmarks/facts.json").read_text(encoding="utf-8"))["cases"]
    measured = [
        metric for case in cases for metric in case.get("metrics", []) if metric.get("value") is not None
    ]
    table, missing = evidence.published(ROOT)
    assert sum(int(str(row[2])) for row in table.rows) + len(missing) == len(measured)
    assert {row[0] for row in table.rows} == set(GROUPS.values())
    assert {metric["name"] for metric in measured} == set(QUANTITIES)
    upper = {metric["name"] for metric in measured if metric.get("max_value_plus") == 0.01}
    assert upper == {name for name, said in QUANTITIES.items() if said.endswith(", at most")}
    zero = next(row for row in table.rows if row[1] == "states with ZeRO-3, GB")
    assert (zero[3], zero[5]) == ("0.0\N{NO-BREAK SPACE}%", "100\N{NO-BREAK SPACE}%")


def test_predictions_that_do_not_run_fail_the_build(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"published.py failed"):
        evidence.published(tmp_path)


def test_the_page_shows_the_tables(book: Any) -> None:
    """Without reports it says so; once they are there, the next build shows them."""
    book.write(
        "checked.md",
        "# Checked\n\n```{checked} reports\n```\n\n```{checked} peers\n```\n",
    )
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    page = book.page("checked")
    assert page.count(evidence.NOT_MEASURED) == len(evidence.REPORTS) + 1
    put(book.root, "layouts.json", REPORTS["layouts.json"][0])
    put(book.root, "peers-cpu.json", PEERS)
    assert book.build().returncode == 0
    page = book.page("checked")
    assert page.count(evidence.NOT_MEASURED) == len(evidence.REPORTS) - 1
    assert "losses at most 2.0e-07 apart" in page
    assert "ours (pdtlib)" in page
    assert "<caption" in page

    book.write("checked.md", "# Checked\n\n```{checked} weather\n```\n")
    done = book.build()
    assert done.returncode != 0
    assert "valid: published, peers, reports" in done.stdout + done.stderr
