"""Labs 03 and 06: every quantity as predicted, on every rank, and a fault is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from lab_running import ROOT, command, comparable, load, run

from pdtlib.book.measured import Row, lines
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh

TENSOR = ROOT / "labs" / "03_tensor_parallel"
SEQUENCE = ROOT / "labs" / "06_sequence_parallel"


def report_of(folder: Path, tmp_path: Path, *, processes: int) -> dict[str, Any]:
    """Run a lab; its text must be the expected one where it is for so many processes."""
    done = run(command(folder, "--json", str(tmp_path / "report.json"), processes=processes))
    assert done.returncode == 0, done.stdout + done.stderr
    if processes == 4:
        assert comparable(done.stdout) == comparable((folder / "expected.txt").read_text(encoding="utf-8"))
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["ranks_off"] == []
    assert all(row["right"] for row in report["rows"])
    return report


@pytest.mark.parametrize("processes", [4, 2])
def test_lab_03_is_as_predicted(processes: int, tmp_path: Path) -> None:
    report = report_of(TENSOR, tmp_path, processes=processes)
    measured = {row["quantity"]: row["measured"] for row in report["rows"]}
    layers, t = 3, processes
    assert measured["all-reduces, forward"] == 2 * layers + 1
    assert measured["all-reduces, backward"] == 2 * layers + 1
    paired = measured["bytes sent forward: one all-reduce"] + measured["bytes sent backward: one all-reduce"]
    assert measured["bytes sent, a gather after every layer"] == 15 / 4 * paired
    assert measured["rank of the weight if all ranks draw alike"] == 64 // t
    assert measured["error of the input's gradient, as printed"] > 0.5
    assert measured["error of the input's gradient, with the all-reduce"] < 1e-12


def test_a_row_off_by_one_is_shown_to_be_wrong() -> None:
    rows = [Row("part", "bytes", 10, 11), Row("part", "difference", 0, 1e-3, 1e-6), Row("part", "ok", 1, 1)]
    assert [row.right for row in rows] == [False, False, True]
    text = list(lines(rows))
    assert [line.endswith("NOT as predicted") for line in text[3:]] == [True, True, False]


def wrong_parts(folder: str) -> dict[str, list[str]]:
    """Lab 03's rows on this rank when the engine lacks one of its messages, by the message."""
    lab: ModuleType = load(Path(folder) / "lab.py", "lab_03")
    from pdtlib.engine.tensor_parallel import layers

    mesh = build_mesh({"tp": torch.distributed.get_world_size()})
    found = {}
    whole_sum, summed = layers.reduce_from, layers.start_sum

    def no_sum(x: torch.Tensor, group: object) -> torch.Tensor:
        return x

    def nothing_started(x: torch.Tensor, group: object, *, phase: str) -> tuple[torch.Tensor, Any]:
        return x.clone(), type("Done", (), {"wait": lambda self: None})()

    for name, attribute, replacement in (
        ("g", "reduce_from", no_sum),
        ("f", "start_sum", nothing_started),
    ):
        setattr(layers, attribute, replacement)
        try:
            rows = list(lab.mlp_rows(mesh, 64, 16))
        finally:
            layers.reduce_from, layers.start_sum = whole_sum, summed
        found[name] = [row.quantity for row in rows if not row.right]
    return found


def test_lab_03_notices_a_missing_message() -> None:
    for found in spawn(wrong_parts, 2, str(TENSOR)):
        assert "difference of output" in found["g"]
        assert "bytes sent forward: one all-reduce" in found["g"]
        assert found["f"] == ["difference of the input's gradient", "bytes sent backward: one all-reduce"]


@pytest.mark.parametrize("processes", [4, 2])
def test_lab_06_is_as_predicted(processes: int, tmp_path: Path) -> None:
    report = report_of(SEQUENCE, tmp_path, processes=processes)
    by_part: dict[str, dict[str, float]] = {}
    for row in report["rows"]:
        by_part.setdefault(row["part"].split(":")[0], {})[row["quantity"]] = row["measured"]
    t, layers = processes, 2
    article = by_part["the article's attention, in float64"]
    assert article["output over the right one, as printed"] == t
    assert article["the input's gradient over the right one, as printed"] == t
    norm = by_part["the gradient of a norm under SP, in float64"]
    assert norm["error on this rank, from its positions alone"] > 0.3
    sequence, alone = by_part["TP with SP"], by_part["TP alone"]
    assert alone["messages forward"] == 2 * layers + 1
    assert sequence["messages forward"] == 2 * alone["messages forward"]
    assert sequence["bytes sent forward"] == alone["bytes sent forward"]
    assert sequence["bytes sent backward"] == 1.5 * alone["bytes sent backward"]
    kept = {way: rows.get("bytes kept for the backward pass", 0.0) for way, rows in by_part.items()}
    assert kept["TP alone"] > 1.2 * kept["TP with SP"]
    assert report["kept_alone"] == pytest.approx(t * kept["TP with SP"], rel=0.02)  # tables are whole
    assert report["kept_alone"] == pytest.approx(t * kept["Ulysses"], rel=1e-3)
    assert kept["Ulysses"] == kept["ring attention"]
    assert by_part["Ulysses"]["bytes of parameters held"] > (t - 1) * sequence["bytes of parameters held"]


def wrong_ways(folder: str) -> list[str]:
    """Lab 06's rows on this rank when the gradients of norms are not summed over the ranks."""
    lab: ModuleType = load(Path(folder) / "lab.py", "lab_06")
    from pdtlib.engine.data_parallel.cut import ModelCut
    from pdtlib.engine.mesh import Mesh

    size = torch.distributed.get_world_size()
    mesh = build_mesh({"tp": size})
    model = {**lab.LAPTOP, "layers": 1, "seq": 32}
    tables = {"model": model, "train": {"precision": "fp32", "sequence_parallel": True}}
    job = lab.from_dict({**tables, "parallel": {"tp": size}})
    one = lab.from_dict({"model": model, "train": {"precision": "fp32"}})
    alone = lab.train(one, Mesh(None, mesh.device))
    summed = ModelCut.sum_partial_gradients
    ModelCut.sum_partial_gradients = lambda self, flats: None  # type: ignore[method-assign]
    try:
        rows = list(lab.way_rows(mesh, "TP with SP", job, alone))
    finally:
        ModelCut.sum_partial_gradients = summed  # type: ignore[method-assign]
    return [row.quantity for row in rows if not row.right]


def test_lab_06_notices_that_norms_gradients_are_not_summed() -> None:
    for found in spawn(wrong_ways, 2, str(SEQUENCE)):
        assert "largest difference of the norms" in found
        assert "bytes sent forward" not in found
